// What of plugin/waymark.h must never change: where every field lies, how many bytes each struct
// has, and how few of them a caller may give. What does not compile here breaks callers.
// Included by c_api*.cc only.
//
// A new field goes to the end of its struct: its line is added below, the struct's size grows, and
// its least size stays.
#ifndef WAYMARK_PLUGIN_ABI_LAYOUT_H_
#define WAYMARK_PLUGIN_ABI_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "blockstore/events.h"
#include "blockstore/ids.h"
#include "blockstore/row_info.h"
#include "plugin/waymark.h"

namespace waymark::abi {

// Structs that are larger than this are garbage.
inline constexpr std::uint32_t kMostStructBytes = 65536;

// The least struct_size of each struct: the end of its last required field.
template <class T>
inline constexpr std::uint32_t kLeastBytes = 0;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_ext> = 16;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_ext_log> = 32;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_step_batch> = 64;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_recorder_options> = 8;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_store_options> = 32;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_shape> = 8;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_store_stats> = 8;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_finding> = 8;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_snapshot_args> = 48;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_read_args> = 64;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_rows_view> = 40;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_collective> = 24;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_session_options> = 28;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_layer_binding> = 20;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_ids> = 40;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_session_stats> = 8;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_layer_stats> = 8;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_chunk_code> = 8;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_document_options> = 8;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_read_limits> = 8;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_format_options> = 8;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_document_info> = 8;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_part> = 24;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_read_damage> = 8;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_chunk_view> = 8;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_redis_options> = 8;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_publisher_options> = 32;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_publisher_stats> = 8;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_handle_info> = 8;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_routing> = 208;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_fetcher_options> = 24;
template <>
inline constexpr std::uint32_t kLeastBytes<wm_fetch_report> = 8;

// Structs that a call fills may be cut anywhere behind their size and the field after it.
inline constexpr std::uint32_t kLeastOutBytes = 8;

static_assert(sizeof(void*) == 8 && sizeof(std::size_t) == 8, "the layouts below are of 64 bits");

#define WM_FIELD(type, field, offset) static_assert(offsetof(type, field) == (offset))
#define WM_SIZE(type, size) static_assert(sizeof(type) == (size))
// The field that ends a struct's least size.
#define WM_LAST_REQUIRED(type, field) \
  static_assert(offsetof(type, field) + sizeof(type::field) == kLeastBytes<type>)

WM_SIZE(wm_message, 24);
WM_FIELD(wm_message, text, 0);
WM_FIELD(wm_message, capacity, 8);
WM_FIELD(wm_message, size, 16);

WM_SIZE(wm_code, 32);
WM_FIELD(wm_code, code, 0);
WM_FIELD(wm_code, rule, 4);
WM_FIELD(wm_code, index, 8);
WM_FIELD(wm_code, value, 16);
WM_FIELD(wm_code, limit, 24);

WM_SIZE(wm_ext, 16);
WM_FIELD(wm_ext, struct_size, 0);
WM_FIELD(wm_ext, type, 4);
WM_FIELD(wm_ext, next, 8);
WM_LAST_REQUIRED(wm_ext, next);

WM_SIZE(wm_ext_log, 32);
WM_FIELD(wm_ext_log, head, 0);
WM_FIELD(wm_ext_log, function, 16);
WM_FIELD(wm_ext_log, context, 24);
WM_LAST_REQUIRED(wm_ext_log, context);

WM_SIZE(wm_event, 56);
WM_FIELD(wm_event, type, 0);
WM_FIELD(wm_event, key_size, 2);
WM_FIELD(wm_event, more, 3);
WM_FIELD(wm_event, block, 4);
WM_FIELD(wm_event, source, 8);
WM_FIELD(wm_event, rows, 12);
WM_FIELD(wm_event, step, 16);
WM_FIELD(wm_event, key, 24);

WM_SIZE(wm_step_batch, 64);
WM_FIELD(wm_step_batch, struct_size, 0);
WM_FIELD(wm_step_batch, flags, 4);
WM_FIELD(wm_step_batch, ext, 8);
WM_FIELD(wm_step_batch, step, 16);
WM_FIELD(wm_step_batch, version, 24);
WM_FIELD(wm_step_batch, events, 32);
WM_FIELD(wm_step_batch, num_events, 40);
WM_FIELD(wm_step_batch, slots, 48);
WM_FIELD(wm_step_batch, num_slots, 56);
WM_LAST_REQUIRED(wm_step_batch, num_slots);

WM_SIZE(wm_recorder_options, 24);
WM_FIELD(wm_recorder_options, struct_size, 0);
WM_FIELD(wm_recorder_options, flags, 4);
WM_FIELD(wm_recorder_options, ext, 8);
WM_FIELD(wm_recorder_options, ring_bytes, 16);

WM_SIZE(wm_store_options, 112);
WM_FIELD(wm_store_options, struct_size, 0);
WM_FIELD(wm_store_options, flags, 4);
WM_FIELD(wm_store_options, ext, 8);
WM_FIELD(wm_store_options, num_layers, 16);
WM_FIELD(wm_store_options, top_k, 20);
WM_FIELD(wm_store_options, num_experts, 24);
WM_FIELD(wm_store_options, num_blocks, 28);
WM_FIELD(wm_store_options, page_tokens, 32);
WM_FIELD(wm_store_options, block_tokens, 36);
WM_FIELD(wm_store_options, layer_ids, 40);
WM_FIELD(wm_store_options, num_layer_ids, 48);
WM_FIELD(wm_store_options, null_blocks, 56);
WM_FIELD(wm_store_options, num_null_blocks, 64);
WM_FIELD(wm_store_options, num_pages, 72);
WM_FIELD(wm_store_options, max_steps_in_flight, 76);
WM_FIELD(wm_store_options, max_step_rows, 80);
WM_FIELD(wm_store_options, landing, 84);
WM_FIELD(wm_store_options, audit_threshold, 88);
WM_FIELD(wm_store_options, key_seed, 96);
WM_FIELD(wm_store_options, recorder, 104);
WM_LAST_REQUIRED(wm_store_options, num_blocks);

WM_SIZE(wm_shape, 48);
WM_FIELD(wm_shape, struct_size, 0);
WM_FIELD(wm_shape, num_layers, 4);
WM_FIELD(wm_shape, top_k, 8);
WM_FIELD(wm_shape, num_experts, 12);
WM_FIELD(wm_shape, page_tokens, 16);
WM_FIELD(wm_shape, block_tokens, 20);
WM_FIELD(wm_shape, num_blocks, 24);
WM_FIELD(wm_shape, id_bytes, 28);
WM_FIELD(wm_shape, row_bytes, 32);
WM_FIELD(wm_shape, layer_ids, 40);

WM_SIZE(wm_row_info, 24);
WM_FIELD(wm_row_info, step, 0);
WM_FIELD(wm_row_info, version, 8);
WM_FIELD(wm_row_info, reason, 16);
WM_FIELD(wm_row_info, provenance, 17);
WM_FIELD(wm_row_info, reserved, 18);

WM_SIZE(wm_coverage_run, 32);
WM_FIELD(wm_coverage_run, begin, 0);
WM_FIELD(wm_coverage_run, end, 8);
WM_FIELD(wm_coverage_run, version, 16);
WM_FIELD(wm_coverage_run, reason, 24);
WM_FIELD(wm_coverage_run, provenance, 25);
WM_FIELD(wm_coverage_run, reserved, 26);

WM_SIZE(wm_store_stats, 360);
WM_FIELD(wm_store_stats, struct_size, 0);
WM_FIELD(wm_store_stats, reserved, 4);
WM_FIELD(wm_store_stats, steps_begun, 8);
WM_FIELD(wm_store_stats, steps_landed, 16);
WM_FIELD(wm_store_stats, steps_dropped, 24);
WM_FIELD(wm_store_stats, steps_cancelled, 32);
WM_FIELD(wm_store_stats, steps_refused_ring, 40);
WM_FIELD(wm_store_stats, rebases, 48);
WM_FIELD(wm_store_stats, rows_claimed, 56);
WM_FIELD(wm_store_stats, rows_landed, 64);
WM_FIELD(wm_store_stats, rows_missing, 72);
WM_FIELD(wm_store_stats, rows_ignored, 136);
WM_FIELD(wm_store_stats, rows_not_asked, 144);
WM_FIELD(wm_store_stats, rows_padding, 152);
WM_FIELD(wm_store_stats, rows_outside, 160);
WM_FIELD(wm_store_stats, rows_without_claim, 168);
WM_FIELD(wm_store_stats, events, 176);
WM_FIELD(wm_store_stats, events_on_null_blocks, 184);
WM_FIELD(wm_store_stats, releases_below_zero, 192);
WM_FIELD(wm_store_stats, hits_by_key, 200);
WM_FIELD(wm_store_stats, second_seals, 208);
WM_FIELD(wm_store_stats, pages, 216);
WM_FIELD(wm_store_stats, pages_in_use, 224);
WM_FIELD(wm_store_stats, pages_in_use_peak, 232);
WM_FIELD(wm_store_stats, evictions, 240);
WM_FIELD(wm_store_stats, own_pages, 248);
WM_FIELD(wm_store_stats, no_page, 256);
WM_FIELD(wm_store_stats, bytes, 264);
WM_FIELD(wm_store_stats, bytes_touched_peak, 272);
WM_FIELD(wm_store_stats, audited_rows, 280);
WM_FIELD(wm_store_stats, audit_disagreements, 288);
WM_FIELD(wm_store_stats, audit_voided_pages, 296);
WM_FIELD(wm_store_stats, audit_voided_rows, 304);
WM_FIELD(wm_store_stats, audit_agreement_sum, 312);
WM_FIELD(wm_store_stats, snapshots_taken, 320);
WM_FIELD(wm_store_stats, snapshots_live, 328);
WM_FIELD(wm_store_stats, landing_lag_count, 336);
WM_FIELD(wm_store_stats, landing_lag_p50_ns, 344);
WM_FIELD(wm_store_stats, landing_lag_p99_ns, 352);

WM_SIZE(wm_finding, 48);
WM_FIELD(wm_finding, struct_size, 0);
WM_FIELD(wm_finding, block, 4);
WM_FIELD(wm_finding, step, 8);
WM_FIELD(wm_finding, kept_step, 16);
WM_FIELD(wm_finding, sealed_step, 24);
WM_FIELD(wm_finding, rows, 32);
WM_FIELD(wm_finding, voided, 36);
WM_FIELD(wm_finding, agreement, 40);

WM_SIZE(wm_snapshot_args, 48);
WM_FIELD(wm_snapshot_args, struct_size, 0);
WM_FIELD(wm_snapshot_args, flags, 4);
WM_FIELD(wm_snapshot_args, ext, 8);
WM_FIELD(wm_snapshot_args, blocks, 16);
WM_FIELD(wm_snapshot_args, num_blocks, 24);
WM_FIELD(wm_snapshot_args, first, 32);
WM_FIELD(wm_snapshot_args, last, 40);
WM_LAST_REQUIRED(wm_snapshot_args, last);

WM_SIZE(wm_read_args, 80);
WM_FIELD(wm_read_args, struct_size, 0);
WM_FIELD(wm_read_args, flags, 4);
WM_FIELD(wm_read_args, ext, 8);
WM_FIELD(wm_read_args, begin, 16);
WM_FIELD(wm_read_args, end, 24);
WM_FIELD(wm_read_args, layout, 32);
WM_FIELD(wm_read_args, id_type, 36);
WM_FIELD(wm_read_args, fill, 40);
WM_FIELD(wm_read_args, reserved, 44);
WM_FIELD(wm_read_args, out, 48);
WM_FIELD(wm_read_args, out_bytes, 56);
WM_FIELD(wm_read_args, infos, 64);
WM_FIELD(wm_read_args, num_infos, 72);
WM_LAST_REQUIRED(wm_read_args, out_bytes);

WM_SIZE(wm_rows_view, 40);
WM_FIELD(wm_rows_view, struct_size, 0);
WM_FIELD(wm_rows_view, flags, 4);
WM_FIELD(wm_rows_view, first, 8);
WM_FIELD(wm_rows_view, count, 16);
WM_FIELD(wm_rows_view, ids, 24);
WM_FIELD(wm_rows_view, infos, 32);
WM_LAST_REQUIRED(wm_rows_view, infos);

WM_SIZE(wm_collective, 32);
WM_FIELD(wm_collective, struct_size, 0);
WM_FIELD(wm_collective, rank, 4);
WM_FIELD(wm_collective, ranks, 8);
WM_FIELD(wm_collective, reserved, 12);
WM_FIELD(wm_collective, all_gather, 16);
WM_FIELD(wm_collective, context, 24);
WM_LAST_REQUIRED(wm_collective, all_gather);

WM_SIZE(wm_session_options, 48);
WM_FIELD(wm_session_options, struct_size, 0);
WM_FIELD(wm_session_options, flags, 4);
WM_FIELD(wm_session_options, ext, 8);
WM_FIELD(wm_session_options, store, 16);
WM_FIELD(wm_session_options, max_rows, 24);
WM_FIELD(wm_session_options, num_buffers, 28);
WM_FIELD(wm_session_options, num_ids_sources, 32);
WM_FIELD(wm_session_options, transport, 36);
WM_FIELD(wm_session_options, device_ordinal, 40);
WM_FIELD(wm_session_options, reserved, 44);
WM_LAST_REQUIRED(wm_session_options, max_rows);

WM_SIZE(wm_layer_binding, 24);
WM_FIELD(wm_layer_binding, struct_size, 0);
WM_FIELD(wm_layer_binding, layer, 4);
WM_FIELD(wm_layer_binding, module, 8);
WM_FIELD(wm_layer_binding, source, 16);
WM_FIELD(wm_layer_binding, reserved, 20);
WM_LAST_REQUIRED(wm_layer_binding, source);

WM_SIZE(wm_view, 48);
WM_FIELD(wm_view, data, 0);
WM_FIELD(wm_view, layer_stride, 8);
WM_FIELD(wm_view, num_layers, 16);
WM_FIELD(wm_view, max_rows, 20);
WM_FIELD(wm_view, top_k, 24);
WM_FIELD(wm_view, buffer, 28);
WM_FIELD(wm_view, step, 32);
WM_FIELD(wm_view, reserved, 40);

WM_SIZE(wm_ids, 56);
WM_FIELD(wm_ids, struct_size, 0);
WM_FIELD(wm_ids, type, 4);
WM_FIELD(wm_ids, data, 8);
WM_FIELD(wm_ids, rows, 16);
WM_FIELD(wm_ids, columns, 20);
WM_FIELD(wm_ids, row_stride, 24);
WM_FIELD(wm_ids, k_stride, 32);
WM_FIELD(wm_ids, layers, 40);
WM_FIELD(wm_ids, reserved, 44);
WM_FIELD(wm_ids, layer_stride, 48);
WM_LAST_REQUIRED(wm_ids, k_stride);

WM_SIZE(wm_done, 16);
WM_FIELD(wm_done, function, 0);
WM_FIELD(wm_done, context, 8);

WM_SIZE(wm_forward, 16);
WM_FIELD(wm_forward, function, 0);
WM_FIELD(wm_forward, context, 8);

WM_SIZE(wm_layer_finding, 24);
WM_FIELD(wm_layer_finding, layer, 0);
WM_FIELD(wm_layer_finding, layer_id, 4);
WM_FIELD(wm_layer_finding, fault, 8);
WM_FIELD(wm_layer_finding, rows, 12);
WM_FIELD(wm_layer_finding, first_row, 16);
WM_FIELD(wm_layer_finding, reserved, 20);

WM_SIZE(wm_session_stats, 64);
WM_FIELD(wm_session_stats, struct_size, 0);
WM_FIELD(wm_session_stats, reserved, 4);
WM_FIELD(wm_session_stats, steps_begun, 8);
WM_FIELD(wm_session_stats, steps_submitted, 16);
WM_FIELD(wm_session_stats, steps_dropped, 24);
WM_FIELD(wm_session_stats, steps_cancelled, 32);
WM_FIELD(wm_session_stats, ring_overflows, 40);
WM_FIELD(wm_session_stats, discards, 48);
WM_FIELD(wm_session_stats, rows_handed_over, 56);

WM_SIZE(wm_layer_stats, 40);
WM_FIELD(wm_layer_stats, struct_size, 0);
WM_FIELD(wm_layer_stats, layer_id, 4);
WM_FIELD(wm_layer_stats, module, 8);
WM_FIELD(wm_layer_stats, source, 16);
WM_FIELD(wm_layer_stats, reserved, 20);
WM_FIELD(wm_layer_stats, rows_silent, 24);
WM_FIELD(wm_layer_stats, rows_invalid, 32);

WM_SIZE(wm_chunk_code, 24);
WM_FIELD(wm_chunk_code, struct_size, 0);
WM_FIELD(wm_chunk_code, flags, 4);
WM_FIELD(wm_chunk_code, codec, 8);
WM_FIELD(wm_chunk_code, low_bits, 12);
WM_FIELD(wm_chunk_code, high_parts, 16);
WM_FIELD(wm_chunk_code, crc_layers, 20);

WM_SIZE(wm_document_options, 24);
WM_FIELD(wm_document_options, struct_size, 0);
WM_FIELD(wm_document_options, flags, 4);
WM_FIELD(wm_document_options, ext, 8);
WM_FIELD(wm_document_options, code, 16);

WM_SIZE(wm_read_limits, 24);
WM_FIELD(wm_read_limits, struct_size, 0);
WM_FIELD(wm_read_limits, reserved, 4);
WM_FIELD(wm_read_limits, max_rows, 8);
WM_FIELD(wm_read_limits, max_bytes, 16);

WM_SIZE(wm_document_info, 56);
WM_FIELD(wm_document_info, struct_size, 0);
WM_FIELD(wm_document_info, flags, 4);
WM_FIELD(wm_document_info, first, 8);
WM_FIELD(wm_document_info, count, 16);
WM_FIELD(wm_document_info, bytes, 24);
WM_FIELD(wm_document_info, minor_version, 32);
WM_FIELD(wm_document_info, num_nodes, 36);
WM_FIELD(wm_document_info, trajectory, 40);

WM_SIZE(wm_part, 32);
WM_FIELD(wm_part, struct_size, 0);
WM_FIELD(wm_part, reserved, 4);
WM_FIELD(wm_part, begin, 8);
WM_FIELD(wm_part, end, 16);
WM_FIELD(wm_part, layer_begin, 24);
WM_FIELD(wm_part, layer_end, 28);
WM_LAST_REQUIRED(wm_part, end);

WM_SIZE(wm_read_damage, 32);
WM_FIELD(wm_read_damage, struct_size, 0);
WM_FIELD(wm_read_damage, reserved, 4);
WM_FIELD(wm_read_damage, damaged_chunks, 8);
WM_FIELD(wm_read_damage, absent_chunks, 16);
WM_FIELD(wm_read_damage, invalid_rows, 24);

WM_SIZE(wm_chunk_view, 40);
WM_FIELD(wm_chunk_view, struct_size, 0);
WM_FIELD(wm_chunk_view, reserved, 4);
WM_FIELD(wm_chunk_view, first, 8);
WM_FIELD(wm_chunk_view, count, 16);
WM_FIELD(wm_chunk_view, layers, 24);
WM_FIELD(wm_chunk_view, layer_bytes, 32);

WM_SIZE(wm_format_options, 112);
WM_FIELD(wm_format_options, struct_size, 0);
WM_FIELD(wm_format_options, flags, 4);
WM_FIELD(wm_format_options, ext, 8);
WM_FIELD(wm_format_options, format, 16);
WM_FIELD(wm_format_options, field, 24);
WM_FIELD(wm_format_options, row_count, 32);
WM_FIELD(wm_format_options, layers, 40);
WM_FIELD(wm_format_options, sentinel, 48);
WM_FIELD(wm_format_options, dtype, 56);
WM_FIELD(wm_format_options, moe_layers, 64);
WM_FIELD(wm_format_options, num_moe_layers, 72);
WM_FIELD(wm_format_options, first, 80);
WM_FIELD(wm_format_options, num_layers, 88);
WM_FIELD(wm_format_options, top_k, 92);
WM_FIELD(wm_format_options, num_experts, 96);
WM_FIELD(wm_format_options, reserved, 100);
WM_FIELD(wm_format_options, max_bytes, 104);

WM_SIZE(wm_redis_options, 128);
WM_FIELD(wm_redis_options, struct_size, 0);
WM_FIELD(wm_redis_options, flags, 4);
WM_FIELD(wm_redis_options, ext, 8);
WM_FIELD(wm_redis_options, host, 16);
WM_FIELD(wm_redis_options, unix_socket, 24);
WM_FIELD(wm_redis_options, user, 32);
WM_FIELD(wm_redis_options, password, 40);
WM_FIELD(wm_redis_options, key_prefix, 48);
WM_FIELD(wm_redis_options, tls_ca_file, 56);
WM_FIELD(wm_redis_options, tls_certificate_file, 64);
WM_FIELD(wm_redis_options, tls_key_file, 72);
WM_FIELD(wm_redis_options, tls_server_name, 80);
WM_FIELD(wm_redis_options, port, 88);
WM_FIELD(wm_redis_options, database, 92);
WM_FIELD(wm_redis_options, time_to_live_s, 96);
WM_FIELD(wm_redis_options, connect_timeout_ms, 100);
WM_FIELD(wm_redis_options, command_timeout_ms, 104);
WM_FIELD(wm_redis_options, first_back_off_ms, 108);
WM_FIELD(wm_redis_options, greatest_back_off_ms, 112);
WM_FIELD(wm_redis_options, believe_ms, 116);
WM_FIELD(wm_redis_options, max_believed, 120);

WM_SIZE(wm_publisher_options, 88);
WM_FIELD(wm_publisher_options, struct_size, 0);
WM_FIELD(wm_publisher_options, flags, 4);
WM_FIELD(wm_publisher_options, ext, 8);
WM_FIELD(wm_publisher_options, source, 16);
WM_FIELD(wm_publisher_options, shape, 24);
WM_FIELD(wm_publisher_options, code, 32);
WM_FIELD(wm_publisher_options, store, 40);
WM_FIELD(wm_publisher_options, max_waiting, 48);
WM_FIELD(wm_publisher_options, max_pages, 56);
WM_FIELD(wm_publisher_options, max_sequences, 64);
WM_FIELD(wm_publisher_options, landing_timeout_ns, 72);
WM_FIELD(wm_publisher_options, source_timeout_ns, 80);
WM_LAST_REQUIRED(wm_publisher_options, shape);

WM_SIZE(wm_publisher_stats, 80);
WM_FIELD(wm_publisher_stats, struct_size, 0);
WM_FIELD(wm_publisher_stats, reserved, 4);
WM_FIELD(wm_publisher_stats, published, 8);
WM_FIELD(wm_publisher_stats, dropped, 16);
WM_FIELD(wm_publisher_stats, failed, 24);
WM_FIELD(wm_publisher_stats, pages, 32);
WM_FIELD(wm_publisher_stats, pages_encoded, 40);
WM_FIELD(wm_publisher_stats, objects_held, 48);
WM_FIELD(wm_publisher_stats, objects_put, 56);
WM_FIELD(wm_publisher_stats, bytes_put, 64);
WM_FIELD(wm_publisher_stats, puts_failed, 72);

WM_SIZE(wm_handle_info, 48);
WM_FIELD(wm_handle_info, struct_size, 0);
WM_FIELD(wm_handle_info, num_tail, 4);
WM_FIELD(wm_handle_info, rows, 8);
WM_FIELD(wm_handle_info, head, 16);
WM_FIELD(wm_handle_info, num_layers, 32);
WM_FIELD(wm_handle_info, top_k, 36);
WM_FIELD(wm_handle_info, num_experts, 40);
WM_FIELD(wm_handle_info, page_tokens, 44);

WM_SIZE(wm_fetcher_options, 48);
WM_FIELD(wm_fetcher_options, struct_size, 0);
WM_FIELD(wm_fetcher_options, flags, 4);
WM_FIELD(wm_fetcher_options, ext, 8);
WM_FIELD(wm_fetcher_options, source, 16);
WM_FIELD(wm_fetcher_options, cache_bytes, 24);
WM_FIELD(wm_fetcher_options, batch_bytes, 32);
WM_FIELD(wm_fetcher_options, max_rows, 40);
WM_LAST_REQUIRED(wm_fetcher_options, source);

WM_SIZE(wm_fetch_report, 48);
WM_FIELD(wm_fetch_report, struct_size, 0);
WM_FIELD(wm_fetch_report, source, 4);
WM_FIELD(wm_fetch_report, fetched, 8);
WM_FIELD(wm_fetch_report, fetched_bytes, 16);
WM_FIELD(wm_fetch_report, hits, 24);
WM_FIELD(wm_fetch_report, absent, 32);
WM_FIELD(wm_fetch_report, damaged, 40);

WM_SIZE(wm_tensor, 56);
WM_FIELD(wm_tensor, data, 0);
WM_FIELD(wm_tensor, shape, 8);
WM_FIELD(wm_tensor, strides, 24);
WM_FIELD(wm_tensor, rank, 40);
WM_FIELD(wm_tensor, dtype, 44);
WM_FIELD(wm_tensor, device_type, 48);
WM_FIELD(wm_tensor, device, 52);

WM_SIZE(wm_routing, 432);
WM_FIELD(wm_routing, struct_size, 0);
WM_FIELD(wm_routing, flags, 4);
WM_FIELD(wm_routing, ext, 8);
WM_FIELD(wm_routing, method, 16);
WM_FIELD(wm_routing, top_k, 20);
WM_FIELD(wm_routing, num_groups, 24);
WM_FIELD(wm_routing, topk_groups, 28);
WM_FIELD(wm_routing, scale, 32);
WM_FIELD(wm_routing, reserved, 36);
WM_FIELD(wm_routing, logits, 40);
WM_FIELD(wm_routing, topk_ids, 96);
WM_FIELD(wm_routing, topk_weights, 152);
WM_FIELD(wm_routing, bias, 208);
WM_FIELD(wm_routing, replay_in, 264);
WM_FIELD(wm_routing, routed, 320);
WM_FIELD(wm_routing, replay_out, 376);
WM_LAST_REQUIRED(wm_routing, topk_weights);

#undef WM_FIELD
#undef WM_SIZE
#undef WM_LAST_REQUIRED

// Arrays of these go through as they lie: the library's own types have the same layout.
#define WM_SAME(field, other, otherfield)                                   \
  static_assert(offsetof(wm_event, field) == offsetof(Event, otherfield) && \
                sizeof(wm_event::field) == sizeof(other::otherfield))
static_assert(sizeof(wm_event) == sizeof(Event) && alignof(wm_event) == alignof(Event));
WM_SAME(type, Event, type);
WM_SAME(key_size, Event, key_size);
WM_SAME(more, Event, more);
WM_SAME(block, Event, block);
WM_SAME(source, Event, source);
WM_SAME(rows, Event, rows);
WM_SAME(step, Event, step);
WM_SAME(key, Event, key);
#undef WM_SAME
#define WM_SAME(field)                                                      \
  static_assert(offsetof(wm_row_info, field) == offsetof(RowInfo, field) && \
                sizeof(wm_row_info::field) == sizeof(RowInfo::field))
static_assert(sizeof(wm_row_info) == sizeof(RowInfo) && alignof(wm_row_info) == alignof(RowInfo));
WM_SAME(step);
WM_SAME(version);
WM_SAME(reason);
WM_SAME(provenance);
WM_SAME(reserved);
#undef WM_SAME
static_assert(sizeof(BlockId) == sizeof(std::int32_t) && alignof(BlockId) == alignof(std::int32_t));

}  // namespace waymark::abi

#endif  // WAYMARK_PLUGIN_ABI_LAYOUT_H_
