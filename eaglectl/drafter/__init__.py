"""What a drafter is, whoever wrote it: dimensions, tensors, aux layers, vocabulary."""
