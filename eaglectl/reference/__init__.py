"""The maths of drafters and of draft-and-verify in plain torch; everything here needs torch."""
