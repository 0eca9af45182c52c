"""What did we learn? The profile: schema, canonical form, matching."""
