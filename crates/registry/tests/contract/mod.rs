//! What every store must do. Each check gets a factory for one empty store.

mod events;
mod installed;
mod maintenance;
mod packages;
mod records;
mod skills;
mod state;

use std::sync::Arc;

use repertoire_registry::store::Store;

/// Makes handles to one store, which is empty at first.
///
/// Each handle behaves like one of another process: it has its own connections and caches.
pub(crate) trait StoreFactory: Send + Sync {
    /// Creates an empty store.
    fn create() -> Self
    where
        Self: Sized;

    /// Opens the store.
    fn open(&self) -> Arc<dyn Store>;
}

/// Declares the checks, and a macro that makes a test of each for one implementation.
macro_rules! checks {
    ($($module:ident { $($check:ident)* })*) => {
        $($(
            pub(crate) fn $check(factory: &dyn StoreFactory) {
                $module::$check(factory);
            }
        )*)*

        macro_rules! store_contract {
            ($name:ident, $factory:path) => {
                mod $name {
                    use crate::contract::StoreFactory;

                    $($(
                        #[test]
                        fn $check() {
                            crate::contract::$check(&<$factory>::create());
                        }
                    )*)*
                }
            };
        }
        pub(crate) use store_contract;
    };
}

checks! {
    skills {
        skills_are_kept_and_listed_by_id
        a_write_with_unchanged_content_leaves_no_revision
        every_revision_can_be_read_and_restored
        purging_removes_history_and_unreferenced_files
        a_batch_is_written_whole_or_not_at_all
        writes_are_checked_against_the_current_digest
        a_dry_run_reports_and_changes_nothing
        names_and_uuids_are_unique
    }
    packages {
        skills_and_artifacts_are_kept_changed_and_removed
        learned_state_is_stored_only_if_its_artifact_is_unchanged
        concurrent_edits_of_one_package_are_all_kept
    }
    state {
        values_are_put_kept_and_deleted
        earlier_values_of_registered_content_are_kept
        refused_changes_leave_the_value
        changes_of_one_key_are_atomic_across_handles
        callbacks_come_in_the_order_of_the_calls
        pages_are_sorted_and_bounded
    }
    installed {
        the_origin_of_a_skill_stays_while_its_content_changes
        installed_files_stay_until_the_skill_is_removed
    }
    events {
        every_change_has_one_event
        a_follower_on_another_handle_sees_every_change
        events_of_one_item_come_in_commit_order
        an_unreadable_cursor_means_reading_everything
    }
    records {
        traces_are_filtered_found_and_deleted
        checkpoints_are_kept_by_session_artifact_and_name
        tokens_have_unique_names
        notes_are_replaced
        the_id_of_a_store_does_not_change
    }
    maintenance {
        cleanup_deletes_only_what_is_superseded_and_old
        a_backup_brings_back_everything_and_followers_notice
        a_restore_loses_no_acknowledged_write
        a_backup_is_consistent_while_others_write
    }
}
