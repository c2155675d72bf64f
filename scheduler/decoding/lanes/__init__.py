"""First axis of a decoder: when a lane begins, forks, ends and is cancelled."""
