"""What a machine with a GPU and without a network needs to run tests/gpu: `make gpu-kit`."""
