"""What may stand together in one pipeline, judged once, when it is composed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from functrain._hook import Hook


def check_composition(members: Sequence[Hook]) -> None:
    """Refuse members that cannot share a state; they come in dispatch order.

    Raises:
        ValueError: names both members and the remedy.
    """
    _check_unique(members, lambda each: (str(id(each)),), _same_instance)
    _check_unique(members, lambda each: (each.exclusive,) if each.exclusive else (), _same_family)
    _check_unique(members, lambda each: (each.name,), _same_name)
    _check_readers(members)


def _check_unique(
    members: Iterable[Hook],
    keys: Callable[[Hook], Iterable[str]],
    complaint: Callable[[Hook, Hook, str], str],
) -> None:
    """Refuse two members that share a key."""
    seen: dict[str, Hook] = {}
    for each in members:
        for key in keys(each):
            if key in seen:
                raise ValueError(complaint(seen[key], each, key))
            seen[key] = each


def _same_instance(first: Hook, second: Hook, _: str) -> str:
    return (
        f"the same instance {second!r} stands twice in one pipeline; a second one needs a name and a slot of its own: "
        f'functrain.named("{first.name}_2", hook)'
    )


def _same_family(first: Hook, second: Hook, key: str) -> str:
    return (
        f"only one hook of the exclusive family {key!r} may stand in a pipeline; "
        f"got {type(first).__name__} ({first.name!r}) and {type(second).__name__} ({second.name!r})"
    )


def _same_name(first: Hook, second: Hook, key: str) -> str:
    return (
        f"two hooks are named {key!r}: {first!r} and {second!r}; each owns state.hooks[name], "
        f'so give one another name: functrain.named("{key}_2", hook)'
    )


def _check_readers(members: Sequence[Hook]) -> None:
    """Refuse a member that reads a metric before its publisher has run."""
    published = {name: place for place, each in enumerate(members) for name in each.publishes}
    for place, each in enumerate(members):
        for name in sorted(each.reads):
            if published.get(name, -1) > place:
                raise ValueError(_too_early(each, members[published[name]], name))


def _too_early(reader: Hook, publisher: Hook, metric: str) -> str:
    return (
        f"{reader.name!r} (priority {reader.priority}) reads the metric {metric!r} before {publisher.name!r} "
        f"(priority {publisher.priority}) publishes it; write "
        f"functrain.prioritized({publisher.priority + 1}, {reader.name})"
    )
