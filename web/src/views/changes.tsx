import { Fragment, memo, useMemo, useState } from 'react';
import type { Work } from '../api/client';
import { useDiff } from '../api/queries';
import { counted, visible } from '../model/format';
import { Button, Empty, Loading, Problem } from '../parts/controls';
import { Icon } from '../parts/icon';
import { Said } from '../parts/text';
import { useKeys } from '../shell/keys';
import { type Comment, placeOf, useComments } from './comments';
import { type DiffFile, type DiffLine, PlusMinus, parsePatch } from './patch';
import { Kept, Review, Written } from './review';

/** What a piece of work changed, file by file. */
export function Changes({ work }: { work: Work }) {
  const diff = useDiff(work.id);
  const files = useMemo(() => parsePatch(diff.data?.patch ?? ''), [diff.data]);
  const [at, setAt] = useState(0);
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
      <Empty title="Nothing was changed">
        <p>What its branch and its worktree hold is what they began with.</p>
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
        {diff.data.truncated && <span className="c-you">It is too large to be shown in full.</span>}
        <span className="end desk">
          a line's number takes a comment · <kbd>[</kbd> <kbd>]</kbd> file before, after
        </span>
      </div>
      <div className="changes">
        <Tree files={files} at={at} go={go} />
        <div className="min-w-0">
          {files.map((file, place) => (
            <OneFile key={file.path} file={file} id={`file-${place}`} work={work.id} />
          ))}
          <Review work={work} />
        </div>
      </div>
    </>
  );
}

const folderOf = (path: string): string => path.slice(0, Math.max(0, path.lastIndexOf('/')));

function Tree({ files, at, go }: { files: DiffFile[]; at: number; go: (place: number) => void }) {
  return (
    <nav className="tree desk" aria-label="Files">
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
              <PlusMinus count={file} />
            </a>
          </div>
        );
      })}
    </nav>
  );
}

const MOST_LINES = 1500;

const OneFile = memo(({ file, id, work }: { file: DiffFile; id: string; work: string }) => {
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
      </header>
      <Lines lines={lines} path={file.path} work={work} />
      {left > 0 && (
        <Button small look="quiet" onClick={() => showAll(true)}>
          {counted(left, 'more line')}
        </Button>
      )}
    </section>
  );
});

const SIGNS = { a: '+', r: '−', h: '', '': '' };

function Lines({ lines, path, work }: { lines: DiffLine[]; path: string; work: string }) {
  const comments = useComments(work);
  const [open, setOpen] = useState<string | null>(null);
  const kept = new Map(comments.all.map((comment) => [placeOf(comment), comment]));
  return (
    <div className="lines">
      {lines.map((line, place) => {
        const number = line.after ?? line.before;
        if (number === null) return <Line key={place} line={line} />;
        const at = { path, line: number, removed: line.after === null };
        const name = placeOf(at);
        const comment = kept.get(name);
        return (
          <Fragment key={place}>
            <Line line={line} comment={() => setOpen(name)} />
            {open === name ? (
              <Written
                text={comment?.text ?? ''}
                keep={(text) => comments.put({ ...at, code: line.text, text } satisfies Comment)}
                close={() => setOpen(null)}
              />
            ) : (
              comment && <Kept comment={comment} open={() => setOpen(name)} />
            )}
          </Fragment>
        );
      })}
    </div>
  );
}

/** A line of a diff; its number is the button that takes a comment. */
function Line({ line, comment }: { line: DiffLine; comment?: () => void }) {
  const number = line.after ?? line.before;
  const label = `Comment on ${line.after === null ? 'removed line' : 'line'} ${number}`;
  const button = (shown: number | null) =>
    shown !== null && comment ? (
      <button type="button" onClick={comment} aria-label={label}>
        {shown}
      </button>
    ) : (
      shown
    );
  return (
    <div className={line.kind || undefined}>
      <i>{line.after === null ? button(line.before) : line.before}</i>
      <i>{button(line.after)}</i>
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
