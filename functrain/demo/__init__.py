"""``functrain demo``: a small network, trained through hooks on real digits, bad batches included.

Each file has one noun: ``options`` what may be set, ``digits`` the data, ``poison`` what is done to it,
``network`` the model, ``recipe`` the shell that trains it, ``purely`` the pure step that may do so instead,
``trial`` one run, ``report`` what is shown, ``artifacts`` what is kept, ``command`` how these meet.
``functrain sweep``, many runs at once, is in ``sweeping`` and ``sweep_command``.
"""
