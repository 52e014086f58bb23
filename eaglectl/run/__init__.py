"""The stage that runs a drafter against its target and says, with numbers, whether it drafts."""
