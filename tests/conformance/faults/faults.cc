#include "tests/conformance/faults/faults.h"

namespace waymark::conformance {
namespace {

#define WAYMARK_FULL                                                                       \
  "draft=.5 preempt=.03 abort=.01 bump=.02 fork=.05 partial=.3 tier=.5 swap=.3 stream=.1 " \
  "rewind=.03 full_hit=.4 pad=.3 behind=3 shuffle=1 "
#define WAYMARK_HARM "drop=.03 cancel=.03 reset=.005 external=.1 mute=.1 silent=.03 "

constexpr Fault kFaults[] = {
    // Lives of blocks.
    {"keep_the_page_at_bind", "vllm", "draft=.5 drop=.05 cancel=.03", nullptr},
    {"derived_binds_are_left_out", "vllm", "abort=.05", nullptr},
    {"derived_seals_are_left_out", nullptr, "", ProbeADerivedSealProtects},
    {"truncate_ignores_the_life", "vllm",
     "draft=.6 late=1 blind_truncate=1 preempt=.1 tier=.9 fork=.2 swap=.5", nullptr},
    {"truncate_spares_what_has_moved", nullptr, "", ProbeTruncateFollowsAMove},
    {"moved_once_is_moved_for_ever", nullptr, "", ProbeTruncateFollowsAMove},
    {"truncate_without_step", "vllm", "draft=.6 late=1", nullptr},
    {"move_one_by_one", "vllm", "swap=.9", nullptr},
    {"events_by_type", "vllm", "swap=.9 partial=.8 fork=.2", nullptr},
    {"life_starts_with_the_last_step", nullptr, "", ProbeLifeStartsWithTheNextStep},
    // Claims.
    {"last_of_a_slot_wins", nullptr, "", ProbeFirstOfASlotWins},
    {"landing_ignores_its_claim", "vllm", "draft=.6 drop=.05 behind=4 shuffle=1", nullptr},
    {"resolve_when_landing", "vllm", WAYMARK_FULL, nullptr},
    {"drop_does_not_claim", "vllm", "draft=.6 no_truncate=1 behind=4 ring=3", nullptr},
    {"cancel_does_not_revoke", "vllm", "draft=.6 cancel=.1", nullptr},
    // Protected rows.
    {"no_protected_rows", "megatron", "full_hit=.7", nullptr},
    {"own_seal_is_applied_when_reported", nullptr, "", ProbeSealsComeAfterTheClaims},
    {"own_seal_reaches_the_next_life", nullptr, "", ProbeSealStaysWithItsLife},
    {"own_seal_stays_behind_a_move", nullptr, "", ProbeOwnSealMovesWithItsBlock},
    {"late_seal_after_the_claims", "megatron", "full_hit=.7 completion_seal=1 draft=.4", nullptr},
    {"another_version_is_ignored", "megatron", "full_hit=.7 bump=.1", nullptr},
    {"rewind_stays_in_the_sealed_page", "vllm", "rewind=.3 draft=.6 tier=.9", nullptr},
    {"seal_dies_with_the_page", "megatron", WAYMARK_FULL WAYMARK_HARM "max_pages=16", nullptr},
    // Visible rows, and copies.
    {"append_in_place_under_a_snapshot", "megatron", "full_hit=.7 bump=.1 stream=.4", nullptr},
    {"second_binding_does_not_count_as_seen", "vllm", "fork=.3 draft=.5", nullptr},
    {"copy_on_write_leaves_rows_above_the_high_water_mark", "megatron", WAYMARK_FULL, nullptr},
    {"pending_row_lands_in_one_page", "vllm", "fork=.3 partial=.5 behind=4 draft=.4", nullptr},
    {"copy_gives_no_user", nullptr, "", ProbeACopyHasAUser},
    {"partial_copy_shares_the_page", "vllm", "partial=.8 drop=.05 tier=.3 fork=.2", nullptr},
    {"page_copies_run_after_landing", "vllm", "fork=.3 partial=.5 behind=4 draft=.4", nullptr},
    // The key index.
    {"seal_rebinds", "vllm", "preempt=.2 draft=.3", nullptr},
    {"first_writer_keeps_the_key", nullptr, "", ProbeBetterPageIsIndexed},
    {"rows_do_not_contend", "megatron", WAYMARK_FULL WAYMARK_HARM "tier=.9", nullptr},
    {"keyed_bind_under_the_last_version", nullptr, "", ProbeKeyedBindKnowsItsVersion},
    {"page_of_another_version_stays", nullptr, "", ProbePageOfAnotherVersionIsLost},
    {"by_key_is_not_marked", "vllm", WAYMARK_FULL "tier=1 preempt=.1", nullptr},
    {"index_without_version", "vllm", "tier=.9 bump=.05 preempt=.2", nullptr},
    {"index_without_ordinal", "vllm", "tier=.9 page_tokens=2", nullptr},
    {"index_keeps_an_overwritten_page", nullptr, "", ProbeOverwrittenPageLeavesTheIndex},
    {"page_of_two_versions_is_indexed", "vllm", "tier=.6 bump=.05 abort=.1", nullptr},
    // Memory.
    {"referenced_pages_are_evicted", nullptr, "", ProbeReferencedPagesStay},
    {"sealed_pages_are_evicted_first", nullptr, "", ProbeUnsealedPagesAreEvictedFirst},
    {"no_pins", nullptr, "", ProbePinnedPagesStay},
    {"slow_reader_takes_pages", "vllm", "max_pages=-1 slow=8 draft=.4", nullptr},
    {"page_of_a_snapshot_is_evicted_for_nothing", nullptr, "", ProbeHeldPageIsNotEvictedForNothing},
    {"copy_forgets_a_row", "vllm", "max_pages=-1 spare=32 slow=24 preempt=.05 stream=.2", nullptr},
    {"copied_page_is_returned_twice", "vllm", "max_pages=-1 spare=32 slow=24 preempt=.05 stream=.2",
     nullptr},
    {"absent_rows_lose_their_reason", nullptr, "", ProbeAbsentRowsKeepTheirReason},
    // Reasons.
    {"not_asked_is_never_written", "vllm", "mute=.3", nullptr},
    {"not_asked_is_external_kv", nullptr, "", ProbeNotAskedInExternalBlock},
    {"reset_is_never_written", nullptr, "", ProbeResetIsCapacity},
    {"cancelled_claim_is_never_written", nullptr, "", ProbeCancelledClaimIsCapacity},
    // Slots that are known on the device only.
    {"device_drop_invalidates_protected_rows", nullptr, "", ProbeDeviceDropSparesProtectedRows},
    {"device_drop_withdraws_protected_claims", nullptr, "", ProbeDeviceDropSparesClaims},
    {"device_drop_leaves_reasons", "vllm", "device=1 drop=.1", nullptr},
    {"lost_slots_land_as_no_rows", "vllm", "device=1 draft=.6 lost_slots=.1", nullptr},
    {"host_step_spares_device_claims", nullptr, "", ProbeDeviceRowIsOlderThanWhatIsThere},
    {"device_steps_land_in_any_order", nullptr, "", ProbeDeviceStepsLandInOrder},
    {"device_row_forgets_that_it_came_by_key", nullptr, "", ProbeDeviceRowStaysByKey},
    {"device_claim_lands_in_one_page", "vllm", "device=1 fork=.3 partial=.5 behind=4 draft=.4",
     nullptr},
    {"possible_rows_do_not_contend", nullptr, "", ProbePossibleRowsContend},
    {"landing_forgets_other_weights", nullptr, "", ProbeWeightsOfPossibleRowsStay},
    {"truncate_spares_device_claims", nullptr, "", ProbeTruncateRevokesDeviceClaims},
    // The log and its messages.
    {"snapshot_is_applied_late", "megatron", "manual=1 lag=30 report=6 mid=.6 preempt=.2 fork=.1",
     nullptr},
    {"overflow_overtakes_the_ring", "vllm", "manual=1 lag=300 log_bytes=1 report=2 preempt=.1",
     nullptr},
    {"covered_prefix_is_stale", nullptr, "", ProbeCoveredPrefixAppliesTheLog},
    {"begin_behind_a_later_schedule", nullptr, "", ProbeBeginOfAnEarlierScheduleIsRefused},
    {"end_of_a_step_is_lost", nullptr, "", ProbeEndsAreNeverLost},
    {"doubled_message_is_applied", "vllm", "wire=1 doubled=.3 abort=.05", nullptr},
    {"gap_is_no_poison", "vllm", "wire=1 lost=.05 abort=.05 preempt=.05", nullptr},
    // Lost records, and tickets.
    {"second_loss_is_not_poisoned", nullptr, "", ProbeEveryLossIsPoisoned},
    {"ticket_is_recycled_twice", nullptr, "", ProbeTicketIsRecycledOnce},
    {"poison_keeps_the_table", nullptr, "", ProbePoisonEmptiesTheTable},
    {"poison_starts_lives", nullptr, "", ProbeASealAfterPoisonCanBeTakenBack},
    {"poison_spares_claims", nullptr, "", ProbePoisonRevokesClaims},
    // Reading.
    {"join_layers_takes_any_step", "megatron", "stages=2 layers=8 drop=.1 full_hit=.7", nullptr},
};

}  // namespace

std::span<const Fault> Faults() {
  return kFaults;
}

}  // namespace waymark::conformance
