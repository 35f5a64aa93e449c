//! Plans: which schedule a call walks, how its buffer is cut, and the fingerprint by which ranks
//! notice that they make different calls. May touch: element, partition, schedule. Pure.
