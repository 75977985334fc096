"""For your own tests: handmade captures, and runs with a planted defect."""

from hotloop.testing.captures import ProcessSpec, Spec, ThreadSpec, make_capture

__all__ = ["ProcessSpec", "Spec", "ThreadSpec", "make_capture"]
