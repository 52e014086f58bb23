"""eaglectl inside vLLM's and SGLang's own start: it says whether they run the drafter as it was trained."""
