"""Records of what was measured, and where they rest."""
