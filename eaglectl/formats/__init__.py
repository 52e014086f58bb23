"""How each producer spells a drafter, and the reading and writing of those spellings."""
