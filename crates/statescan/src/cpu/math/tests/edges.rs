use super::super::*;
use super::*;
