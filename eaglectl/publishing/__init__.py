"""Publishing a drafter: what is sent and what never is, the card and the record beside it, one commit, and what landed."""
