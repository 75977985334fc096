"""One file for each verb that needs more than one part of hotloop."""
