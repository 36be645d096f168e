import { Fragment, memo, type ReactNode, useMemo, useState } from 'react';
import type { Work } from '../api/client';
import { useDiff } from '../api/queries';
import { counted, visible } from '../model/format';
import { Button, Choices, Empty, Loading, Problem } from '../parts/controls';
import { Glyph } from '../parts/glyph';
import { Icon } from '../parts/icon';
import { Said } from '../parts/text';
import { useKeys } from '../shell/keys';
import { usePreference } from '../shell/preferences';
import { type Comment, placeOf, useComments } from './comments';
import { type DiffFile, type DiffLine, PlusMinus, pairsOf, parsePatch } from './patch';
import { Kept, Review, Written } from './review';
import { useReviewed } from './reviewed';

type Look = 'unified' | 'split';

/** The diff of work, file by file. */
export function Changes({ work }: { work: Work }) {
  const diff = useDiff(work.id);
  const files = useMemo(() => parsePatch(diff.data?.patch ?? ''), [diff.data]);
  const [at, setAt] = useState(0);
  // In narrow windows the files stand above the diff, folded.
  const [showsFiles, showFiles] = useState(false);
  const [look, choose] = usePreference('diff', 'unified');
  const reviewed = useReviewed(work.id);
  const go = (place: number) => {
    if (!files[place]) return;
    setAt(place);
    document.getElementById(`file-${place}`)?.scrollIntoView({ block: 'start' });
  };
  useKeys({ '[': () => go(at - 1), ']': () => go(at + 1) });
  if (diff.error) return <Problem error={diff.error} />;
  if (diff.isPending) return <Loading lines={8} />;
  if (files.length === 0) {
    return (
      <Empty title="No changes">
        <p>The branch and the worktree are the same as at the start.</p>
      </Empty>
    );
  }
  const total = {
    added: files.reduce((sum, file) => sum + file.added, 0),
    removed: files.reduce((sum, file) => sum + file.removed, 0),
  };
  return (
    <>
      <div className="tbar">
        <span>
          {work.workspace.base && `Against ${work.workspace.base}: `}
          {counted(files.length, 'file')} <PlusMinus count={total} />
        </span>
        <span className="faint">
          {files.filter(reviewed.has).length} of {files.length} reviewed
        </span>
        {diff.data.truncated && <span className="c-you">The diff is too large to show in full.</span>}
        <span className="end desk">
          a line's number takes a comment · <kbd>[</kbd> <kbd>]</kbd> file before, after
          <Choices<Look>
            label="Look"
            value={look === 'split' ? 'split' : 'unified'}
            choose={choose}
            of={[
              { value: 'unified', label: 'Unified' },
              { value: 'split', label: 'Split' },
            ]}
          />
        </span>
      </div>
      <div className="changes">
        <Button small className="files" aria-expanded={showsFiles} onClick={() => showFiles(!showsFiles)}>
          {showsFiles ? 'Hide files' : 'Show files'}
        </Button>
        <Tree files={files} at={at} go={go} has={reviewed.has} open={showsFiles} />
        <div className="min-w-0">
          {files.map((file, place) => (
            <OneFile
              key={file.path}
              file={file}
              id={`file-${place}`}
              work={work.id}
              split={look === 'split'}
              reviewed={reviewed.has(file)}
              mark={reviewed.mark}
            />
          ))}
        </div>
      </div>
      <Review work={work} />
    </>
  );
}

const folderOf = (path: string): string => path.slice(0, Math.max(0, path.lastIndexOf('/')));

interface TreeProps {
  files: DiffFile[];
  at: number;
  go: (place: number) => void;
  has: (file: DiffFile) => boolean;
  /** Tells whether the person has expanded the file. */
  open: boolean;
}

function Tree({ files, at, go, has, open }: TreeProps) {
  return (
    <nav className={`tree ${open ? 'open' : ''}`} aria-label="Files">
      {files.map((file, place) => {
        const folder = folderOf(file.path);
        const first = folder !== folderOf(files[place - 1]?.path ?? '');
        return (
          <div key={file.path}>
            {first && folder && (
              <span className="d">
                <Icon name="folder" />
                <Said className="cut">{folder}</Said>
              </span>
            )}
            <a
              href={`#file-${place}`}
              className={folder ? 'in' : ''}
              aria-current={place === at ? 'true' : undefined}
              onClick={(event) => {
                event.preventDefault();
                go(place);
              }}
            >
              <Said className="cut">{file.path.slice(folder.length).replace(/^\//, '')}</Said>
              {has(file) && <Glyph state="said" label="reviewed" />}
              <PlusMinus count={file} />
            </a>
          </div>
        );
      })}
    </nav>
  );
}

const MOST_LINES = 1500;

interface FileProps {
  file: DiffFile;
  id: string;
  work: string;
  split: boolean;
  reviewed: boolean;
  mark: (file: DiffFile, reviewed: boolean) => void;
}

const OneFile = memo(({ file, id, work, split, reviewed, mark }: FileProps) => {
  const [all, showAll] = useState(false);
  const lines = all ? file.lines : file.lines.slice(0, MOST_LINES);
  const left = file.lines.length - lines.length;
  return (
    <section className="diff" id={id} aria-label={file.path}>
      <header>
        <Icon name="file" />
        <Said className="mono cut">{file.path}</Said>
        {file.about && <span className="faint">{file.about}</span>}
        <PlusMinus count={file} />
        <label className="reviewed">
          <input type="checkbox" checked={reviewed} onChange={(event) => mark(file, event.target.checked)} />
          Reviewed
        </label>
      </header>
      {!reviewed && <Lines lines={lines} path={file.path} work={work} split={split} />}
      {!reviewed && left > 0 && (
        <Button small look="quiet" onClick={() => showAll(true)}>
          {counted(left, 'more line')}
        </Button>
      )}
    </section>
  );
});

const SIGNS = { a: '+', r: '−', h: '', '': '' };

interface LinesProps {
  lines: DiffLine[];
  path: string;
  work: string;
  split: boolean;
}

function Lines({ lines, path, work, split }: LinesProps) {
  const comments = useComments(work);
  const [open, setOpen] = useState<string | null>(null);
  const kept = new Map(comments.all.map((comment) => [placeOf(comment), comment]));
  const placed = (line: DiffLine) => {
    const number = line.after ?? line.before;
    return number === null ? null : { path, line: number, removed: line.after === null };
  };
  const asks = (line: DiffLine) => {
    const at = placed(line);
    return at ? () => setOpen(placeOf(at)) : undefined;
  };
  /** The comment on a line, or the field for it. */
  const about = (line: DiffLine): ReactNode => {
    const at = placed(line);
    if (!at) return null;
    const name = placeOf(at);
    const comment = kept.get(name);
    if (open !== name) return comment && <Kept comment={comment} open={() => setOpen(name)} />;
    return (
      <Written
        text={comment?.text ?? ''}
        keep={(text) => comments.put({ ...at, code: line.text, text } satisfies Comment)}
        close={() => setOpen(null)}
      />
    );
  };
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys
    <div className="lines" role="region" aria-label={`Lines of ${path}`} tabIndex={0}>
      {split
        ? pairsOf(lines).map(([old, fresh], place) => (
            <Fragment key={place}>
              {old?.kind === 'h' ? (
                <Line line={old} />
              ) : (
                <div className="beside">
                  <Half line={old} of="before" comment={old && old !== fresh ? asks(old) : undefined} />
                  <Half line={fresh} of="after" comment={fresh ? asks(fresh) : undefined} />
                </div>
              )}
              {old && old !== fresh && about(old)}
              {fresh && about(fresh)}
            </Fragment>
          ))
        : lines.map((line, place) => (
            <Fragment key={place}>
              <Line line={line} comment={asks(line)} />
              {about(line)}
            </Fragment>
          ))}
    </div>
  );
}

interface HalfProps {
  line: DiffLine | null;
  of: 'before' | 'after';
  comment: (() => void) | undefined;
}

/** One side of a line: as it was, or as it is. */
const Half = ({ line, of, comment }: HalfProps) => (
  <>
    <i className={line?.kind}>
      <Numbered line={line} number={line?.[of] ?? null} comment={comment} />
    </i>
    <span className={line ? line.kind : 'h'}>{line && <Code line={line} />}</span>
  </>
);

interface NumberProps {
  line: DiffLine | null;
  number: number | null;
  comment: (() => void) | undefined;
}

/** The number of a line, which is the button that takes a comment. */
const Numbered = ({ line, number, comment }: NumberProps) =>
  number !== null && comment ? (
    <button
      type="button"
      onClick={comment}
      aria-label={`Comment on ${line?.after === null ? 'removed line' : 'line'} ${number}`}
    >
      {number}
    </button>
  ) : (
    number
  );

/** A line of a diff. */
function Line({ line, comment }: { line: DiffLine; comment?: () => void }) {
  const removed = line.after === null;
  return (
    <div className={line.kind || undefined}>
      <i>{removed ? <Numbered line={line} number={line.before} comment={comment} /> : line.before}</i>
      <i>
        <Numbered line={line} number={line.after} comment={comment} />
      </i>
      <u>{SIGNS[line.kind]}</u>
      <Code line={line} />
    </div>
  );
}

function Code({ line: { text, marked } }: { line: DiffLine }) {
  if (!marked || marked[0] >= marked[1]) return <span>{visible(text)}</span>;
  const [from, to] = marked;
  return (
    <span>
      {visible(text.slice(0, from))}
      <em>{visible(text.slice(from, to))}</em>
      {visible(text.slice(to))}
    </span>
  );
}
