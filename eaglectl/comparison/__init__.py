"""Comparing two drafters: what they mean, their tensors, and how their files are written."""
