"""A memory report to look at: a page or a picture. See `write.write_report`."""
