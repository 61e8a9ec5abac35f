"""What must not harm a training: full disks, files of others, kills, signals, closed streams, neighbours."""
