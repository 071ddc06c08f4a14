//! Lets the allocator of glibc give freed memory back to the system.
//!
//! By default glibc learns from large buffers that large buffers are frequent, and then keeps up to
//! 64 MiB of freed memory in each of its arenas. A server that has once sent large answers would stay
//! large. Other allocators do this better, but cost memory when idle, or minutes of compilation.

/// Buffers from this size on come from the system and go back to it at once.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MMAP_THRESHOLD: libc::c_int = 512 * 1024;
/// More freed memory than this at the end of an arena goes back to the system.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const TRIM_THRESHOLD: libc::c_int = 1024 * 1024;

/// Sets the thresholds for the whole process; call it first. Other systems are left as they are.
pub fn set_thresholds() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (parameter, value) in [
        (libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD),
        (libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD),
    ] {
        #[allow(
            unsafe_code,
            reason = "there is no safe way to set a parameter of malloc"
        )]
        // SAFETY: `mallopt` takes two numbers and has no preconditions; a value that it does not
        // accept changes nothing.
        unsafe {
            libc::mallopt(parameter, value);
        }
    }
}

/// Gives back the freed memory between what is still in use, which no threshold reaches. This takes
/// milliseconds, so a server does it now and then. Other systems are left as they are.
pub fn release_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[allow(unsafe_code, reason = "there is no safe way to trim the heap")]
    // SAFETY: `malloc_trim` takes a number, has no preconditions and locks what it changes.
    unsafe {
        libc::malloc_trim(0);
    }
}
