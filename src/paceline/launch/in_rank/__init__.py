"""What runs in a rank around the user's script: the entry, its files, and workarounds."""
