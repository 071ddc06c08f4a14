"""DSPy in a process of its own: it knows templates, and asks its host for everything else."""
