//! How long passes take, and how long they must.

pub mod device;
pub mod floors;
pub mod measured;
pub mod median;
