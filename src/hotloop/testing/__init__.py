"""For your own tests: captures made from a description, and made-up runs with a known defect."""

from hotloop.testing.captures import ProcessSpec, Spec, ThreadSpec, make_capture

__all__ = ["ProcessSpec", "Spec", "ThreadSpec", "make_capture"]
