"""The open parallel libraries: `core` without a framework, one adaptor per framework beside it."""
