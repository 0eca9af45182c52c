"""Images, captions, buckets, caches and logical batches."""
