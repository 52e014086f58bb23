"""Two drafters side by side: what they mean, what their tensors hold, how they are spelled."""
