"""The functions that queries may call. A query that calls another function is rejected before DuckDB sees it.

None of them reads a file, a setting, the catalog or the environment, and none runs text as SQL.
"""

from __future__ import annotations

_AGGREGATES = """
any_value approx_count_distinct approx_distinct approx_quantile arg_max arg_min array_agg array_concat_agg avg
bool_and bool_or corr count count_if covar_pop covar_samp first group_concat histogram kurtosis last list logical_and
logical_or mad max max_by mean median min min_by mode percentile_cont percentile_disc product quantile quantile_cont
quantile_disc skewness stddev stddev_pop stddev_samp string_agg sum var_pop var_samp variance variance_pop
"""
_WINDOWS = """
cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank row_number
"""
_NUMBERS = """
abs acos asin atan atan2 cbrt ceil ceiling cos cot degrees div even exp floor gamma greatest is_inf is_nan isfinite
isinf isnan least ln log log10 log2 mod pi pow power radians round safe_divide sign sin sqrt tan trunc int_div
"""
_TEXTS = """
ascii bit_length char_length chr concat concat_ws contains ends_with endswith format initcap instr left length
levenshtein lower lpad ltrim md5 octet_length overlay position printf regexp_extract regexp_extract_all
regexp_full_match regexp_i_like regexp_like regexp_matches regexp_replace regexp_split replace reverse right rpad
rtrim sha256 split split_part starts_with startswith str_position strip_accents strpos substr substring translate trim
unicode upper
"""
_TIMES = """
age current_date current_timestamp date date_add date_diff date_part date_sub date_trunc datediff day day_of_month
day_of_week day_of_year dayname dayofmonth dayofweek dayofyear epoch epoch_ms epoch_us extract hour isodow last_day
make_date make_timestamp microsecond millisecond minute month monthname now quarter second str_to_time strftime
strptime time_bucket time_to_str timestamp_add timestamp_diff timestamp_sub timestamp_trunc to_timestamp ts_or_ds_add
ts_or_ds_to_date unix_to_time week week_of_year weekofyear year
"""
_LISTS = """
aggregate array array_all array_max array_min array_any array_append array_contains array_concat array_distinct
array_filter array_length array_position array_size array_slice array_sort array_sum array_to_string array_transform
cardinality element_at explode filter flatten len list_aggregate list_avg list_contains list_distinct list_extract
list_filter list_max list_min list_position list_slice list_sort list_sum list_transform list_value map map_entries
map_extract map_extract_value map_from_entries map_keys map_values row sort_array struct struct_extract struct_pack
transform unnest
"""
_OTHERS = """
case cast coalesce if ifnull nullif nvl try try_cast typeof and or xor exists like ilike similar_to json_array_length
json_b_extract json_extract json_extract_path json_extract_scalar json_extract_string json_keys json_type json_valid
parse_json is_null_value columns hash
"""

ALLOWED = frozenset(
    name for group in (_AGGREGATES, _WINDOWS, _NUMBERS, _TEXTS, _TIMES, _LISTS, _OTHERS) for name in group.split()
)
