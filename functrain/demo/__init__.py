"""``functrain demo``: a small network, trained through hooks on real digits, bad batches included.

Each file has one noun: ``options`` what may be set, ``digits`` the data, ``poison`` what is done to it,
``network`` the model, ``recipe`` the shell that trains it, ``trial`` one run, ``report`` what is shown,
``artifacts`` what is kept, ``command`` how these meet.
"""
