"""Publishing a drafter: the files to send, the card and the record, one commit and its verification."""
