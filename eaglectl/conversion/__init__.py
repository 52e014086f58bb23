"""The stage that turns a canonical drafter into a plan for another layout."""
