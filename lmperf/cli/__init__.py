"""One module a command; ``parser`` knows all flags and loads nothing else."""
