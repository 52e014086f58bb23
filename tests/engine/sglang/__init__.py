"""SGLang's own engine on a CPU, and what it does with changed drafters."""
