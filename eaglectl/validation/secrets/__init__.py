"""Searching whole files for keys, tokens and passwords: the rules (gitleaks' and our own), and the scan."""
