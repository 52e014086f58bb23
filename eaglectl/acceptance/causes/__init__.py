"""The causes of low acceptance, by how a diagnosis with them ends."""
