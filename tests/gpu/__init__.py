"""Tests that need a real accelerator: `make test-gpu`."""
