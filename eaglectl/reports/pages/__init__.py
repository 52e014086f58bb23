"""The pages of `--page`: what each command found, as one HTML file that needs nothing else."""
