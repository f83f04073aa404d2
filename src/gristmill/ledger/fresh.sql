CREATE TABLE gm_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT gm_version_pkc PRIMARY KEY (version_num)
)
;
CREATE TABLE gm_ledger (
	id SMALLINT NOT NULL, 
	epoch BIGINT DEFAULT '1' NOT NULL, 
	oldest TEXT NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT gm_ledger_one CHECK (id = 1)
)
;
CREATE TABLE gm_schedule (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	name TEXT NOT NULL, 
	spec TEXT NOT NULL, 
	declared BOOLEAN NOT NULL, 
	undeclared_at BIGINT, 
	paused_at BIGINT, 
	paused_by TEXT, 
	fire_at BIGINT, 
	due_at BIGINT, 
	last_at BIGINT, 
	last_started_at BIGINT, 
	last_job_id BIGINT, 
	last_run_id BIGINT, 
	created_at BIGINT NOT NULL, 
	CONSTRAINT gm_schedule_due CHECK ((fire_at IS NULL) = (due_at IS NULL)), 
	CONSTRAINT gm_schedule_paused CHECK (paused_at IS NULL OR fire_at IS NULL), 
	UNIQUE (name)
)
;
CREATE INDEX gm_schedule_next ON gm_schedule (due_at) WHERE due_at IS NOT NULL
;
CREATE TABLE gm_fire (
	id INTEGER NOT NULL, 
	schedule_id BIGINT NOT NULL, 
	fire_at BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	outcome TEXT NOT NULL, 
	job_id BIGINT, 
	runs TEXT, 
	detail TEXT, 
	who TEXT, 
	PRIMARY KEY (id), 
	FOREIGN KEY(schedule_id) REFERENCES gm_schedule (id) ON DELETE CASCADE
)
;
CREATE UNIQUE INDEX gm_fire_once ON gm_fire (schedule_id, fire_at) WHERE who IS NULL
;
CREATE INDEX gm_fire_newest ON gm_fire (schedule_id, id)
;
CREATE TABLE gm_once (
	"key" TEXT NOT NULL, 
	at BIGINT NOT NULL, 
	number BIGINT NOT NULL, 
	PRIMARY KEY ("key")
)
;
CREATE INDEX gm_once_age ON gm_once (at)
;
CREATE TABLE gm_attempt (
	job_id BIGINT NOT NULL, 
	attempt INTEGER NOT NULL, 
	outcome TEXT NOT NULL, 
	error_class TEXT, 
	error TEXT, 
	traceback TEXT, 
	log TEXT, 
	worker_id BIGINT, 
	started_at BIGINT, 
	ended_at BIGINT NOT NULL, 
	fingerprint TEXT, 
	PRIMARY KEY (job_id, attempt)
)
;
CREATE INDEX gm_attempt_error ON gm_attempt (fingerprint, ended_at) WHERE fingerprint IS NOT NULL
;
CREATE TABLE gm_audit (
	id INTEGER NOT NULL, 
	at BIGINT NOT NULL, 
	who TEXT NOT NULL, 
	verb TEXT NOT NULL, 
	target TEXT NOT NULL, 
	detail TEXT DEFAULT '{}' NOT NULL, 
	PRIMARY KEY (id)
)
;
CREATE TABLE gm_order (
	id BIGINT NOT NULL, 
	done TEXT DEFAULT '{}' NOT NULL, 
	reached BIGINT, 
	touched_at BIGINT NOT NULL, 
	PRIMARY KEY (id)
)
;
CREATE INDEX gm_order_open ON gm_order (id) WHERE reached IS NOT NULL
;
CREATE TABLE gm_removal (
	stage_id BIGINT NOT NULL, 
	PRIMARY KEY (stage_id)
)
;
CREATE TABLE gm_ignored_error (
	fingerprint TEXT NOT NULL, 
	at BIGINT NOT NULL, 
	who TEXT NOT NULL, 
	PRIMARY KEY (fingerprint)
)
;
CREATE TABLE gm_job (
	id INTEGER NOT NULL, 
	run_id BIGINT, 
	stage_id BIGINT, 
	parent_id BIGINT, 
	ready BIGINT, 
	run_at BIGINT, 
	worker_id BIGINT, 
	emitted BIGINT DEFAULT 0 NOT NULL, 
	created_at BIGINT NOT NULL, 
	started_at BIGINT, 
	finished_at BIGINT, 
	task_id INTEGER NOT NULL, 
	queue_id INTEGER NOT NULL, 
	limit_id INTEGER, 
	attempt INTEGER DEFAULT 0 NOT NULL, 
	parent_attempt INTEGER, 
	epoch INTEGER, 
	pool SMALLINT NOT NULL, 
	priority SMALLINT NOT NULL, 
	state SMALLINT NOT NULL, 
	errors SMALLINT DEFAULT 0 NOT NULL, 
	crashes SMALLINT DEFAULT 0 NOT NULL, 
	timeouts SMALLINT DEFAULT 0 NOT NULL, 
	losses SMALLINT DEFAULT 0 NOT NULL, 
	returns INTEGER DEFAULT 0 NOT NULL, 
	unique_scope SMALLINT, 
	cancel BOOLEAN DEFAULT false NOT NULL, 
	alone BOOLEAN DEFAULT false NOT NULL, 
	"key" TEXT, 
	unique_key TEXT, 
	unique_name TEXT, 
	args TEXT, 
	result TEXT, 
	error TEXT, 
	error_class TEXT, 
	progress TEXT, 
	fingerprint TEXT, 
	archived_at BIGINT, 
	odd SMALLINT GENERATED ALWAYS AS (CASE WHEN state IN (3, 5) THEN state END) STORED, 
	parts INTEGER, 
	parts_left INTEGER, 
	parts_failed INTEGER, 
	ends_as SMALLINT, 
	PRIMARY KEY (id), 
	CONSTRAINT gm_job_by_state CHECK (CASE state WHEN 0 THEN worker_id IS NULL AND finished_at IS NULL AND (ready IS NULL OR run_at IS NULL) WHEN 1 THEN worker_id IS NOT NULL AND ready IS NULL AND run_at IS NULL AND finished_at IS NULL ELSE worker_id IS NULL AND ready IS NULL AND run_at IS NULL AND finished_at IS NOT NULL END AND CASE WHEN parts_left IS NULL THEN ends_as IS NULL ELSE parts_left >= 0 AND parts_failed >= 0 AND parts_left + parts_failed <= parts AND (parts_left = 0 OR state < 2) AND (ends_as IS NULL OR (state = 0 AND ready IS NULL AND run_at IS NULL AND parts_left > 0)) END)
)
;
CREATE INDEX gm_job_ending ON gm_job (id) WHERE ends_as IS NOT NULL
;
CREATE INDEX gm_job_error ON gm_job (fingerprint, id) WHERE fingerprint IS NOT NULL
;
CREATE UNIQUE INDEX gm_job_item ON gm_job (stage_id, "key") WHERE stage_id IS NOT NULL
;
CREATE INDEX gm_job_line ON gm_job (queue_id, pool, priority, ready) WHERE ready IS NOT NULL
;
CREATE INDEX gm_job_limited ON gm_job (limit_id, priority, id) WHERE run_at = 4611686018427387904
;
CREATE INDEX gm_job_odd ON gm_job (odd, id) WHERE odd IS NOT NULL
;
CREATE INDEX gm_job_alone ON gm_job (queue_id, task_id, id) WHERE stage_id IS NULL
;
CREATE INDEX gm_job_open_parts ON gm_job (run_id, id) WHERE parts_left > 0
;
CREATE UNIQUE INDEX gm_job_part ON gm_job (parent_id, "key") WHERE stage_id IS NULL AND parent_id IS NOT NULL
;
CREATE UNIQUE INDEX gm_job_unique ON gm_job (unique_key) WHERE unique_key IS NOT NULL
;
CREATE TABLE gm_queue (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	weight DOUBLE DEFAULT '1' NOT NULL, 
	paused BOOLEAN DEFAULT false NOT NULL, 
	limit_id INTEGER, 
	PRIMARY KEY (id), 
	CONSTRAINT gm_queue_weight CHECK (weight > 0), 
	UNIQUE (name)
)
;
CREATE TABLE gm_limit (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	declared TEXT, 
	chosen TEXT, 
	tokens DOUBLE DEFAULT 0 NOT NULL, 
	stamped BIGINT DEFAULT 0 NOT NULL, 
	failures INTEGER DEFAULT 0 NOT NULL, 
	open_until BIGINT, 
	due_at BIGINT, 
	more BOOLEAN DEFAULT false NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT gm_limit_once UNIQUE (name, "key")
)
;
CREATE INDEX gm_limit_due ON gm_limit (due_at) WHERE due_at IS NOT NULL
;
CREATE TABLE gm_permit (
	limit_id INTEGER NOT NULL, 
	job_id BIGINT NOT NULL, 
	in_line BOOLEAN NOT NULL, 
	PRIMARY KEY (limit_id, job_id)
)
;
CREATE INDEX ix_gm_permit_job_id ON gm_permit (job_id)
;
CREATE TABLE gm_subject (
	id INTEGER NOT NULL, 
	pipeline TEXT NOT NULL, 
	name TEXT NOT NULL, 
	created_at BIGINT NOT NULL, 
	interval BIGINT, 
	last_run_id BIGINT, 
	last_state SMALLINT, 
	last_run_at BIGINT, 
	last_good_run_id BIGINT, 
	last_good_at BIGINT DEFAULT 0 NOT NULL, 
	chosen_at BIGINT DEFAULT 0 NOT NULL, 
	stale_at BIGINT GENERATED ALWAYS AS (CASE WHEN last_run_at > chosen_at THEN last_run_at ELSE chosen_at END) STORED, 
	due_at BIGINT GENERATED ALWAYS AS (CASE WHEN last_run_at > chosen_at THEN last_run_at ELSE chosen_at END + "interval") STORED, 
	PRIMARY KEY (id), 
	CONSTRAINT gm_subject_interval CHECK ("interval" > 0), 
	CONSTRAINT gm_subject_once UNIQUE (pipeline, name)
)
;
CREATE INDEX gm_subject_state ON gm_subject (last_state, id)
;
CREATE INDEX gm_subject_age ON gm_subject (last_good_at)
;
CREATE INDEX gm_subject_stale ON gm_subject (pipeline, stale_at, name) WHERE "interval" IS NULL
;
CREATE INDEX gm_subject_due ON gm_subject (pipeline, due_at, name) WHERE "interval" IS NOT NULL
;
CREATE TABLE gm_label (
	subject_id BIGINT NOT NULL, 
	"key" TEXT NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY (subject_id, "key"), 
	FOREIGN KEY(subject_id) REFERENCES gm_subject (id) ON DELETE CASCADE
)
;
CREATE INDEX gm_label_value ON gm_label ("key", value, subject_id)
;
CREATE TABLE gm_task (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	spec TEXT NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT gm_task_once UNIQUE (name, spec)
)
;
CREATE TABLE gm_class (
	id SMALLINT NOT NULL, 
	demand TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (demand)
)
;
CREATE TABLE gm_worker (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	host TEXT NOT NULL, 
	pid INTEGER NOT NULL, 
	born TEXT NOT NULL, 
	queues TEXT NOT NULL, 
	slots INTEGER NOT NULL, 
	own_slots TEXT DEFAULT '{}' NOT NULL, 
	labels TEXT DEFAULT '[]' NOT NULL, 
	memory INTEGER DEFAULT 0 NOT NULL, 
	version TEXT NOT NULL, 
	delivery TEXT DEFAULT 'database' NOT NULL, 
	state SMALLINT NOT NULL, 
	registered_at BIGINT NOT NULL, 
	heartbeat_at BIGINT NOT NULL, 
	lease_until BIGINT NOT NULL
)
;
CREATE INDEX gm_worker_active ON gm_worker (lease_until) WHERE state = 0
;
CREATE TABLE gm_claim (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	worker_id BIGINT NOT NULL, 
	jobs TEXT NOT NULL, 
	FOREIGN KEY(worker_id) REFERENCES gm_worker (id) ON DELETE CASCADE
)
;
CREATE INDEX ix_gm_claim_worker_id ON gm_claim (worker_id)
;
CREATE TABLE gm_run (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	subject_id BIGINT NOT NULL, 
	pipeline TEXT NOT NULL, 
	priority SMALLINT NOT NULL, 
	state SMALLINT NOT NULL, 
	epoch INTEGER DEFAULT '1' NOT NULL, 
	args TEXT NOT NULL, 
	error TEXT, 
	reason TEXT, 
	stop SMALLINT, 
	stop_by TEXT, 
	created_at BIGINT NOT NULL, 
	started_at BIGINT, 
	finished_at BIGINT, 
	retried_at BIGINT, 
	CONSTRAINT gm_run_finished CHECK ((finished_at IS NULL) = (state IN (0, 1, 7))), 
	FOREIGN KEY(subject_id) REFERENCES gm_subject (id)
)
;
CREATE INDEX gm_run_of_subject ON gm_run (subject_id, id)
;
CREATE UNIQUE INDEX gm_run_one_active ON gm_run (subject_id) WHERE state IN (0, 1)
;
CREATE UNIQUE INDEX gm_run_one_waiting ON gm_run (subject_id) WHERE state = 7
;
CREATE INDEX gm_run_stopping ON gm_run (id) WHERE stop IS NOT NULL AND finished_at IS NULL
;
CREATE TABLE gm_stage (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	run_id BIGINT NOT NULL, 
	name TEXT NOT NULL, 
	position SMALLINT NOT NULL, 
	task_id INTEGER NOT NULL, 
	queue_id INTEGER NOT NULL, 
	pool SMALLINT NOT NULL, 
	"each" BOOLEAN NOT NULL, 
	gate BOOLEAN NOT NULL, 
	need_count INTEGER, 
	need_share DOUBLE, 
	waiting_for SMALLINT NOT NULL, 
	state SMALLINT NOT NULL, 
	outcome SMALLINT, 
	total BIGINT DEFAULT 0 NOT NULL, 
	completed BIGINT DEFAULT 0 NOT NULL, 
	with_errors BIGINT DEFAULT 0 NOT NULL, 
	failed BIGINT DEFAULT 0 NOT NULL, 
	skipped BIGINT DEFAULT 0 NOT NULL, 
	cancelled BIGINT DEFAULT 0 NOT NULL, 
	opened_at BIGINT, 
	closed_at BIGINT, 
	limit_id INTEGER, 
	source_id BIGINT, 
	todo TEXT, 
	pruning TEXT, 
	CONSTRAINT gm_stage_sum CHECK (completed + failed + skipped + cancelled <= total), 
	CONSTRAINT gm_stage_closed CHECK (state <> 3 OR completed + failed + skipped + cancelled = total), 
	CONSTRAINT gm_stage_waiting_for CHECK (waiting_for >= 0), 
	CONSTRAINT gm_stage_with_errors CHECK (with_errors <= completed), 
	FOREIGN KEY(queue_id) REFERENCES gm_queue (id), 
	FOREIGN KEY(run_id) REFERENCES gm_run (id) ON DELETE CASCADE, 
	FOREIGN KEY(task_id) REFERENCES gm_task (id), 
	CONSTRAINT gm_stage_once UNIQUE (run_id, name)
)
;
CREATE INDEX gm_stage_source ON gm_stage (source_id) WHERE source_id IS NOT NULL
;
CREATE INDEX gm_stage_chores ON gm_stage (run_id) WHERE todo IS NOT NULL OR pruning IS NOT NULL
;
CREATE TABLE gm_done (
	subject_id BIGINT NOT NULL, 
	stage TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	run_id BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	PRIMARY KEY (subject_id, stage, "key"), 
	FOREIGN KEY(subject_id) REFERENCES gm_subject (id) ON DELETE CASCADE
)
;
CREATE TABLE gm_lock (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	kind INTEGER NOT NULL, 
	object INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	job_id BIGINT, 
	worker_id BIGINT, 
	host TEXT NOT NULL, 
	pid INTEGER NOT NULL, 
	born TEXT NOT NULL, 
	asked_at BIGINT NOT NULL, 
	held_at BIGINT, 
	lease_until BIGINT NOT NULL
)
;
CREATE INDEX gm_lock_line ON gm_lock (kind, object, id)
;
CREATE TABLE gm_applied (
	resource TEXT NOT NULL, 
	version TEXT, 
	label TEXT, 
	job_id BIGINT, 
	at BIGINT NOT NULL, 
	PRIMARY KEY (resource)
)
;
CREATE TABLE gm_missed (
	job_id BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	error TEXT NOT NULL, 
	PRIMARY KEY (job_id)
)
;
CREATE TABLE gm_message (
	job_id BIGINT NOT NULL, 
	attempt INTEGER NOT NULL, 
	backend_job_id TEXT NOT NULL, 
	era BIGINT NOT NULL, 
	number BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	PRIMARY KEY (job_id)
)
;
CREATE TABLE gm_ringer (
	queue_id INTEGER NOT NULL, 
	delivery TEXT NOT NULL, 
	at BIGINT NOT NULL, 
	PRIMARY KEY (queue_id, delivery)
)
;
CREATE TABLE gm_recovery (
	subject_id BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	what TEXT NOT NULL, 
	run_id BIGINT, 
	items BIGINT NOT NULL, 
	detail TEXT NOT NULL, 
	PRIMARY KEY (subject_id, at, what), 
	FOREIGN KEY(subject_id) REFERENCES gm_subject (id) ON DELETE CASCADE
)
;
CREATE TABLE gm_edge (
	upstream_id BIGINT NOT NULL, 
	downstream_id BIGINT NOT NULL, 
	PRIMARY KEY (upstream_id, downstream_id), 
	FOREIGN KEY(downstream_id) REFERENCES gm_stage (id) ON DELETE CASCADE, 
	FOREIGN KEY(upstream_id) REFERENCES gm_stage (id) ON DELETE CASCADE
)
;
CREATE INDEX ix_gm_edge_downstream_id ON gm_edge (downstream_id)
;
CREATE VIEW gristmill_runs AS 
            SELECT r.id, r.pipeline, s.name AS subject, CASE r.state WHEN 0 THEN 'queued' WHEN 1 THEN 'in_progress' WHEN 2 THEN 'completed' WHEN 3 THEN 'completed_with_errors' WHEN 4 THEN 'failed' WHEN 5 THEN 'cancelled' WHEN 6 THEN 'skipped' WHEN 7 THEN 'waiting' END AS state,
                CASE r.priority WHEN 0 THEN 'high' WHEN 1 THEN 'normal' WHEN 2 THEN 'low' END AS priority, r.epoch, r.args, r.error, r.reason,
                strftime('%Y-%m-%dT%H:%M:%fZ', r.created_at / 1e6, 'unixepoch') AS created_at, strftime('%Y-%m-%dT%H:%M:%fZ', r.started_at / 1e6, 'unixepoch') AS started_at, strftime('%Y-%m-%dT%H:%M:%fZ', r.finished_at / 1e6, 'unixepoch') AS finished_at
            FROM gm_run r JOIN gm_subject s ON s.id = r.subject_id
;
CREATE VIEW gristmill_stages AS 
            SELECT g.id, g.run_id, r.pipeline, s.name AS subject, g.name AS stage, g.position,
                CASE g.state WHEN 0 THEN 'waiting' WHEN 1 THEN 'open' WHEN 2 THEN 'sealed' WHEN 3 THEN 'closed' END AS state, CASE g.outcome WHEN 0 THEN 'queued' WHEN 1 THEN 'in_progress' WHEN 2 THEN 'completed' WHEN 3 THEN 'completed_with_errors' WHEN 4 THEN 'failed' WHEN 5 THEN 'cancelled' WHEN 6 THEN 'skipped' WHEN 7 THEN 'waiting' END AS outcome,
                g.total, g.completed, g.with_errors, g.failed, g.skipped, g.cancelled,
                strftime('%Y-%m-%dT%H:%M:%fZ', g.opened_at / 1e6, 'unixepoch') AS opened_at, strftime('%Y-%m-%dT%H:%M:%fZ', g.closed_at / 1e6, 'unixepoch') AS closed_at
            FROM gm_stage g JOIN gm_run r ON r.id = g.run_id JOIN gm_subject s ON s.id = r.subject_id
;
CREATE VIEW gristmill_jobs AS 
            SELECT j.id, j.run_id, g.name AS stage, j.key, t.name AS task, q.name AS queue,
                CASE j.state WHEN 0 THEN 'queued' WHEN 1 THEN 'in_progress' WHEN 2 THEN 'completed' WHEN 3 THEN 'completed_with_errors' WHEN 4 THEN 'failed' WHEN 5 THEN 'cancelled' WHEN 6 THEN 'skipped' WHEN 7 THEN 'waiting' END AS state, CASE j.priority WHEN 0 THEN 'high' WHEN 1 THEN 'normal' WHEN 2 THEN 'low' END AS priority, j.attempt,
                j.errors, j.crashes, j.timeouts, j.losses, j.returns, j.args, j.result, j.error, j.error_class, j.fingerprint,
                j.progress, j.worker_id, CASE WHEN j.stage_id IS NULL THEN j.parent_id END AS part_of, j.parts, j.parts_left,
                j.parts_failed, l.name AS limit_name, l.key AS limit_key,
                (SELECT m.backend_job_id FROM gm_message m WHERE m.job_id = j.id) AS backend_job_id,
                strftime('%Y-%m-%dT%H:%M:%fZ', (CASE WHEN j.run_at < 4611686018427387904 THEN j.run_at END) / 1e6, 'unixepoch') AS run_at,
                strftime('%Y-%m-%dT%H:%M:%fZ', j.created_at / 1e6, 'unixepoch') AS created_at, strftime('%Y-%m-%dT%H:%M:%fZ', j.started_at / 1e6, 'unixepoch') AS started_at, strftime('%Y-%m-%dT%H:%M:%fZ', j.finished_at / 1e6, 'unixepoch') AS finished_at, strftime('%Y-%m-%dT%H:%M:%fZ', j.archived_at / 1e6, 'unixepoch') AS archived_at
            FROM gm_job j JOIN gm_task t ON t.id = j.task_id JOIN gm_queue q ON q.id = j.queue_id
                LEFT JOIN gm_stage g ON g.id = j.stage_id LEFT JOIN gm_limit l ON l.id = j.limit_id
            WHERE (j.stage_id IS NULL OR g.id IS NOT NULL)
                AND (j.run_id IS NULL OR EXISTS (SELECT 1 FROM gm_run r WHERE r.id = j.run_id))
;
CREATE TABLE gm_token (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	name TEXT NOT NULL, 
	role TEXT NOT NULL, 
	hash TEXT NOT NULL, 
	created_at BIGINT NOT NULL, 
	created_by TEXT NOT NULL, 
	expires_at BIGINT, 
	used_at BIGINT, 
	revoked_at BIGINT, 
	revoked_by TEXT, 
	CONSTRAINT gm_token_role CHECK (role IN ('viewer', 'operator', 'admin')), 
	UNIQUE (hash)
)
;
CREATE UNIQUE INDEX gm_token_name ON gm_token (name) WHERE revoked_at IS NULL
;
CREATE TABLE gm_event (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	place BIGINT, 
	at BIGINT NOT NULL, 
	name TEXT NOT NULL, 
	run_id BIGINT, 
	data TEXT DEFAULT '{}' NOT NULL, 
	UNIQUE (place)
)
;
CREATE INDEX gm_event_new ON gm_event (id) WHERE place IS NULL
;
CREATE TABLE gm_minute (
	minute BIGINT NOT NULL, 
	worker_id BIGINT NOT NULL, 
	queue_id INTEGER NOT NULL, 
	task_id INTEGER NOT NULL, 
	completed BIGINT DEFAULT 0 NOT NULL, 
	completed_with_errors BIGINT DEFAULT 0 NOT NULL, 
	failed BIGINT DEFAULT 0 NOT NULL, 
	skipped BIGINT DEFAULT 0 NOT NULL, 
	cancelled BIGINT DEFAULT 0 NOT NULL, 
	retried BIGINT DEFAULT 0 NOT NULL, 
	ran BIGINT DEFAULT 0 NOT NULL, 
	waited BIGINT DEFAULT 0 NOT NULL, 
	waits BIGINT DEFAULT 0 NOT NULL, 
	ran_0 BIGINT DEFAULT 0 NOT NULL, 
	ran_1 BIGINT DEFAULT 0 NOT NULL, 
	ran_2 BIGINT DEFAULT 0 NOT NULL, 
	ran_3 BIGINT DEFAULT 0 NOT NULL, 
	ran_4 BIGINT DEFAULT 0 NOT NULL, 
	ran_5 BIGINT DEFAULT 0 NOT NULL, 
	ran_6 BIGINT DEFAULT 0 NOT NULL, 
	ran_7 BIGINT DEFAULT 0 NOT NULL, 
	ran_8 BIGINT DEFAULT 0 NOT NULL, 
	ran_9 BIGINT DEFAULT 0 NOT NULL, 
	ran_10 BIGINT DEFAULT 0 NOT NULL, 
	ran_11 BIGINT DEFAULT 0 NOT NULL, 
	ran_12 BIGINT DEFAULT 0 NOT NULL, 
	waited_0 BIGINT DEFAULT 0 NOT NULL, 
	waited_1 BIGINT DEFAULT 0 NOT NULL, 
	waited_2 BIGINT DEFAULT 0 NOT NULL, 
	waited_3 BIGINT DEFAULT 0 NOT NULL, 
	waited_4 BIGINT DEFAULT 0 NOT NULL, 
	waited_5 BIGINT DEFAULT 0 NOT NULL, 
	waited_6 BIGINT DEFAULT 0 NOT NULL, 
	waited_7 BIGINT DEFAULT 0 NOT NULL, 
	waited_8 BIGINT DEFAULT 0 NOT NULL, 
	waited_9 BIGINT DEFAULT 0 NOT NULL, 
	waited_10 BIGINT DEFAULT 0 NOT NULL, 
	waited_11 BIGINT DEFAULT 0 NOT NULL, 
	waited_12 BIGINT DEFAULT 0 NOT NULL, 
	PRIMARY KEY (minute, worker_id, queue_id, task_id)
)
;
CREATE TABLE gm_trace (
	kind SMALLINT NOT NULL, 
	number BIGINT NOT NULL, 
	traceparent TEXT NOT NULL, 
	at BIGINT NOT NULL, 
	PRIMARY KEY (kind, number)
)
;
CREATE INDEX gm_trace_age ON gm_trace (at)
;
CREATE TABLE gm_commit (
	connection TEXT NOT NULL, 
	number BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	PRIMARY KEY (connection)
)
;
CREATE TABLE gm_failure (
	error_class TEXT NOT NULL, 
	worker_id BIGINT NOT NULL, 
	attempts BIGINT NOT NULL, 
	PRIMARY KEY (error_class, worker_id)
)
;
CREATE INDEX gm_job_own_key ON gm_job (task_id, unique_name, id) WHERE stage_id IS NULL AND unique_name IS NOT NULL
;
CREATE INDEX gm_job_failed ON gm_job (id) WHERE fingerprint IS NOT NULL
;
CREATE INDEX gm_attempt_when ON gm_attempt (ended_at, fingerprint) WHERE fingerprint IS NOT NULL
;
CREATE INDEX gm_job_later ON gm_job (run_at, queue_id) WHERE run_at IS NOT NULL
;
CREATE INDEX gm_job_archived ON gm_job (id) WHERE archived_at IS NOT NULL
;
INSERT INTO gm_version (version_num) VALUES ('0007')
;
INSERT INTO gm_ledger (id, epoch, oldest) VALUES (1, 1, '0001')