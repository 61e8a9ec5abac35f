"""Reports: a snapshot goes in, text or data comes out; nothing here measures or writes."""
