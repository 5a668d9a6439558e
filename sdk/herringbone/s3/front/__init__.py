"""An S3 front of a folder: clients of S3 read and write its files; `app.make_app` makes the ASGI application."""
