"""Mutated models through the deployment side, guided by coverage."""
