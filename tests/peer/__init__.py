"""functrain beside nvalchemi-toolkit 0.2.0: the same run through both, and every row of the contract."""
