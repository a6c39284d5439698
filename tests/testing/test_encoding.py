"""States as JSON: every bit comes back, and what is damaged is refused in words."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given

from functrain import EMA, FrozenMap, Stage, TrainState
from functrain._encoding import Encoder, Node, dtype_named
from functrain._owners import Owners
from functrain._sealed import parsed
from functrain._tree import leaves, structure
from functrain.testing import states
from functrain.testing.encoding import decoded, encoded
from functrain.testing.forms import bits, in_form

NAN, INF = float("nan"), float("inf")
TENSORS = [
    torch.tensor([NAN, INF, -INF, -0.0, 5e-324], dtype=torch.float64),
    torch.tensor([0x7FC00001, 0x7F800001, -1], dtype=torch.int32).view(torch.float32),
    torch.tensor([NAN, 3e38, 1e-40], dtype=torch.bfloat16),
    torch.tensor([[complex(NAN, -0.0), complex(1, -INF)]], dtype=torch.complex64),
    torch.tensor([complex(1, 2)]).conj(),
    torch.tensor(complex(1, 2)).conj().imag,
    torch.empty((0, 3), dtype=torch.float16),
    torch.empty((), dtype=torch.int64).fill_(-(2**63)),
    torch.tensor([True, False]),
    torch.arange(6.0).reshape(2, 3).T,
    torch.tensor([1.5, -448.0]).to(torch.float8_e4m3fn),
]


def there_and_back(value: Any) -> Any:
    """Return a value after it was text."""
    return decoded(json.loads(json.dumps(encoded(value), allow_nan=False)))


def raw(tensor: torch.Tensor) -> Any:
    """Return dtype, shape and every bit, those of a NaN included."""
    plain = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return tensor.dtype, tensor.shape, plain.view(torch.uint8).tolist() if plain.numel() else []


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda tensor: f"{tensor.dtype}-{tuple(tensor.shape)}")
def test_a_tensor_comes_back_bit_by_bit(tensor: torch.Tensor) -> None:
    """NaN with its payload, infinities, half precision, complex, empty, strided."""
    assert raw(there_and_back(tensor)) == raw(tensor)


@given(state=states(EMA()))
def test_a_state_comes_back(state: TrainState) -> None:
    """Structure, static fields and leaves, in both forms."""
    for form in ("python", "tensor"):
        before = in_form(state, form)
        after = there_and_back(before)
        assert structure(after) == structure(before)
        assert list(map(bits, leaves(after))) == list(map(bits, leaves(before)))


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1, (2.5, True), "text"],
        {"a": {1: (), Stage.DO_BACKWARD: frozenset({"b", "c"})}},
        (torch.float16, -0.0, 10**30, INF, -INF),
        Owners({"main": [("main", "w"), ("teacher", "w")]}),
        {"record": 1, "tensor": 2},
    ],
    ids=["nothing", "list", "mappings", "numbers", "owners", "names of its own"],
)
def test_other_values_come_back(value: Any) -> None:
    """With their types; a mapping that looks like a tag stays a mapping."""
    again = there_and_back(value)
    assert again == value
    assert repr(again) == repr(value)


def test_the_bits_of_a_number_come_back() -> None:
    """Also of a NaN that is negative."""
    assert bits(there_and_back(-0.0)) == bits(-0.0)
    assert str(torch.tensor(there_and_back(-NAN), dtype=torch.float64).view(torch.int64)) == str(
        torch.tensor(-NAN, dtype=torch.float64).view(torch.int64)
    )


def test_what_is_no_data_is_refused_with_its_place() -> None:
    """A function cannot be stored."""
    with pytest.raises(ValueError, match=r'state\.batch\["f"\] holds a builtin_function_or_method'):
        encoded(TrainState(batch={"f": print}))
    with pytest.raises(ValueError, match=r"state\.loss: a tensor of layout torch.sparse_coo"):
        encoded(TrainState(loss=torch.eye(2).to_sparse()))


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        ({"tensor": {"dtype": "float99", "shape": [], "data": ""}}, "no dtype 'float99'"),
        ({"tensor": {"dtype": "load", "shape": [], "data": ""}}, "no dtype 'load'"),
        ({"tensor": {"dtype": "float32", "shape": [2], "data": "AAAAAA=="}}, "4 bytes are no tensor of shape"),
        ({"tensor": {"dtype": "float32", "shape": [10**12], "data": ""}}, "0 bytes are no tensor of shape"),
        ({"tensor": {"dtype": "float32", "shape": [-1], "data": ""}}, "is no shape"),
        ({"tensor": {"dtype": "float32", "shape": [True], "data": "AAAAAA=="}}, "is no shape"),
        ({"tensor": {"dtype": "float32", "shape": [1], "data": "AA!AAAA=="}}, "base64"),
        ({"tensor": {"shape": []}}, "damaged value of kind 'tensor'.*'dtype'"),
        ({"float": "zz"}, "non-hexadecimal"),
        ({"float": "7f"}, "damaged value of kind 'float'"),
        ({"stage": "NO_SUCH"}, "damaged value of kind 'stage'.*NO_SUCH"),
        ({"map": [["a"]]}, "unpack"),
        ({"map": 3}, "damaged value of kind 'map'"),
        ({"dict": [[["a"], 1]]}, "unhashable"),
        ({"record": {"of": "Popen", "fields": {}}}, "Popen"),
        ({"record": {"of": "Clock", "fields": {"step": 1}}}, "a Clock has other fields: .'batch'"),
        ({"a": 1, "b": 2}, "is no kind of value"),
        ({"python": "print(1)"}, "is no kind of value"),
    ],
)
def test_what_is_damaged_is_refused(damaged: Any, said: str) -> None:
    """With what is wrong, and always as a ValueError."""
    with pytest.raises(ValueError, match=said):
        decoded(damaged)


def test_a_field_of_the_wrong_type_is_refused() -> None:
    """A state is a state."""
    record = encoded(TrainState())
    record["record"]["fields"]["clock"] = 3
    with pytest.raises(ValueError, match=r"TrainState\.clock cannot be a int"):
        decoded(record)


class Pair(NamedTuple):
    """A node that only its owner can build."""

    one: Any
    other: Any


def test_nodes_of_a_class_come_back_as_what_they_hold() -> None:
    """Nobody looks the class up: its name and its children are data."""
    again = there_and_back({"slot": Pair(1, (2.5, None))})
    assert isinstance(again["slot"], Node)
    assert again["slot"].of.endswith(":Pair")
    assert again["slot"].children == (1, (2.5, None))
    assert there_and_back(again) == again


def test_mappings_of_the_standard_library_keep_their_class() -> None:
    """``MultiStepLR`` counts its milestones with a Counter."""
    again = there_and_back([Counter({2: 1}), OrderedDict(a=1)])
    assert [type(each) for each in again] == [Counter, OrderedDict]
    assert again == [Counter({2: 1}), OrderedDict(a=1)]
    with pytest.raises(ValueError, match=r'state\["d"\] holds a Odd'):
        encoded({"d": type("Odd", (dict,), {})()})


def test_a_number_that_is_none_is_refused() -> None:
    """JSON readers take NaN and 1e999; here the bits of such a number are written out."""
    for text in ("NaN", "1e999", "[-Infinity]"):
        with pytest.raises(ValueError, match="is written as no number"):
            decoded(json.loads(text))


@pytest.mark.parametrize("name", [3, None, ["float32"], "float31", "nn"])
def test_what_names_no_dtype_is_refused(name: Any) -> None:
    """A damaged file is a ValueError, whatever stands where a dtype should."""
    with pytest.raises(ValueError, match="torch has no dtype"):
        dtype_named(name)


@pytest.mark.parametrize("wrap", [dict, OrderedDict, FrozenMap])
def test_the_place_of_what_is_no_data_is_named(wrap: Any) -> None:
    """In any mapping, as source text."""
    with pytest.raises(ValueError, match=r'state\["outer"\]\["inner"\]'):
        Encoder(lambda _tensor, _where: 0).encoded({"outer": wrap({"inner": object()})}, "state")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "it is no object"),
        ("[" * 100_000, "it is nested too deeply"),
        ('{"a": NaN}', "NaN is no number in JSON"),
    ],
    ids=["list", "deep", "NaN"],
)
def test_what_is_no_object_of_json_is_refused(text: str, message: str) -> None:
    """A ValueError says what is wrong with the text."""
    with pytest.raises(ValueError, match=message):
        parsed(text)


def test_a_file_of_data_is_readable_and_the_same_each_time() -> None:
    """A finite number stands as its digits, a set in one order whatever the hashes, a key as it is written."""
    assert encoded(0.5) == 0.5
    assert encoded(frozenset(Stage))["set"] == sorted(({"stage": each.name} for each in Stage), key=repr)
    with pytest.raises(ValueError, match=r'^state\["Größe"\]\[1\] holds a object'):
        encoded({"Größe": [1, object()]})
