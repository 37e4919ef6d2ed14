"""The agents of this example, one a file."""
