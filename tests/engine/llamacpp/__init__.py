"""llama.cpp's own converter and server on a CPU, and what they do with changed drafters."""
