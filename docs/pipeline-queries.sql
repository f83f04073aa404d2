-- Queries for operators of clerk. Those above the line are as the design of 2026-01-18 printed them; the ones with NOW(),
-- INTERVAL or EXTRACT are for PostgreSQL. Below are views that both kinds of database have.

-- How many sites in each stage?
SELECT current_stage, COUNT(*)
FROM sites
WHERE current_stage IS NOT NULL
GROUP BY current_stage;

-- Sites with high failure rates?
SELECT subdomain, ocr_total, ocr_completed, ocr_failed,
       ROUND(100.0 * ocr_failed / NULLIF(ocr_total, 0), 1) as failure_rate_pct
FROM sites
WHERE ocr_total > 0 AND ocr_failed > 0
ORDER BY failure_rate_pct DESC
LIMIT 20;

-- Sites stuck > 2 hours?
SELECT subdomain, current_stage, updated_at,
       EXTRACT(EPOCH FROM (NOW() - updated_at))/3600 as hours_stuck
FROM sites
WHERE current_stage != 'completed'
  AND updated_at < NOW() - INTERVAL '2 hours'
ORDER BY hours_stuck DESC;

-- Verify site_progress not being written to
SELECT COUNT(*) FROM site_progress WHERE updated_at > NOW() - INTERVAL '24 hours';

-- Overall pipeline health
SELECT
    current_stage,
    COUNT(*) as site_count,
    AVG(EXTRACT(EPOCH FROM (NOW() - updated_at))/3600) as avg_hours_in_stage
FROM sites
WHERE current_stage != 'completed'
GROUP BY current_stage;

-- Sites with failures
SELECT
    subdomain,
    current_stage,
    ocr_total, ocr_completed, ocr_failed,
    compilation_failed,
    last_error_stage,
    last_error_message
FROM sites
WHERE ocr_failed > 0 OR compilation_failed > 0
ORDER BY updated_at DESC
LIMIT 50;

-- Throughput: completions per day
SELECT
    DATE(updated_at) as date,
    COUNT(*) as sites_completed
FROM sites
WHERE current_stage = 'completed'
  AND updated_at > NOW() - INTERVAL '7 days'
GROUP BY DATE(updated_at)
ORDER BY date DESC;

-- Success rates by stage
SELECT
    'ocr' as stage,
    SUM(ocr_total) as total_jobs,
    SUM(ocr_completed) as succeeded,
    SUM(ocr_failed) as failed,
    ROUND(100.0 * SUM(ocr_completed) / NULLIF(SUM(ocr_total), 0), 1) as success_rate
FROM sites
WHERE ocr_total > 0
UNION ALL
SELECT
    'compilation',
    SUM(compilation_total),
    SUM(compilation_completed),
    SUM(compilation_failed),
    ROUND(100.0 * SUM(compilation_completed) / NULLIF(SUM(compilation_total), 0), 1)
FROM sites
WHERE compilation_total > 0;

-- ---------------------------------------------------------------------------------------------------------------------

-- Stuck for two hours, on both databases; outcome is NULL while the run should move, else it waits for a person
SELECT subdomain, current_stage, updated_at, hours_stuck, outcome FROM clerk_stuck ORDER BY hours_stuck DESC;

-- Health of the pipeline, on both databases
SELECT current_stage, site_count, avg_hours_in_stage FROM clerk_health;

-- Throughput of the last seven days from the history of runs, on both databases
SELECT date, sites_completed, runs_failed FROM clerk_throughput ORDER BY date DESC;

-- Success rates of all five stages, on both databases
SELECT stage, total_jobs, succeeded, failed, success_rate FROM clerk_success_rate;
