//! Being a worker on somebody else's bus.
